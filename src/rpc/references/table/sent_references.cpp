#include "sent_references.hpp"

#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "../../worker/worker_core.hpp"
#include "../protocol/reference_records.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0::detail {

sent_references::sent_references(std::shared_ptr<reference_table> table, const call_target& to)
    : table_(std::move(table)), to_(table_->peer(to)) {}

sent_references::~sent_references() {
  if (references_.empty()) return;
  if (sent_) {
    table_->watch(to_, references_, call_);
  } else {
    table_->not_sent(to_, references_);
  }
}

std::uint32_t sent_references::put(const void* handle) {
  const auto& state = *static_cast<const reference_state*>(handle);
  state.check();
  if (state.table != table_) {
    throw_error(
        errc::invalid_argument,
        fmt::format("{} cannot send a reference that belongs to another worker of this process (id {}); let that "
                    "worker make the call",
                    to_string(table_->worker()->agent().self()), state.table->self().id.value));
  }
  for (std::size_t i = 0; i != states_.size() && i != 16; ++i) {  // most messages have few
    if (states_[i].get() == &state) return static_cast<std::uint32_t>(i);
  }
  references_.push_back(table_->transfer(state, to_));
  states_.push_back(state.shared_from_this());
  return static_cast<std::uint32_t>(references_.size() - 1);
}

void sent_references::seal(outgoing_message& message) {
  // What a reply answers; of a request its caller says what has become of it, and of a one-way call there is nothing to ask by.
  call_ = message.header.kind == frame_kind::request ? 0 : message.header.call_id;
  add_references_record(message, table_->self().incarnation, references_);
}

void sent_references::settled(bool received) noexcept {
  if (received) {
    table_->arrived(to_, references_);
  } else {
    table_->query(to_, references_);
  }
  references_.clear();
}

}  // namespace ferry::inline v0::detail
