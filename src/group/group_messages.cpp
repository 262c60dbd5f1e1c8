#include "group_messages.hpp"

#include <string>

#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"
#include "group_table.hpp"

namespace ferry::inline v0::detail {
namespace {

const bool group_methods_registered = [] {
  add_library_methods({usable_method<named<"ferry/group/message", serve_group_message>>().id,
                       usable_method<named<"ferry/group/abort", serve_group_abort>>().id,
                       usable_method<named<"ferry/group/inquiry", serve_group_inquiry>>().id,
                       usable_method<named<"ferry/group/wake", serve_group_wake>>().id,
                       usable_method<named<"ferry/group/hello", serve_group_hello>>().id});
  return true;
}();

std::shared_ptr<group_core> group_of_sender(std::uint64_t id, std::int32_t from) {
  auto group = group_table::of(*current_worker())->find(id);
  if (!group) throw_error(errc::invalid_argument, group_table::none);
  group->check_sender(from);
  return group;
}

}  // namespace

future<void> serve_group_message(const group_message& message, const tensor& bytes) {
  const auto table = group_table::of(*current_worker());
  const auto group = table->find(message.group);
  if (!group) {
    if (auto error = table->error_of(message.group, message.key)) return make_failed_future<void>(std::move(error));
    throw_error(errc::invalid_argument, group_table::none);
  }
  group->check_sender(message.from);
  return group->deliver(message, bytes);
}
void serve_group_abort(const group_abort& what) {
  const auto group = group_table::of(*current_worker())->find(what.group);
  if (!group) return;
  group->check_sender(what.from);
  group->on_abort(what);
}
std::string serve_group_inquiry(const group_inquiry& what) {
  return group_of_sender(what.group, what.from)->begun_as(what.key);
}
void serve_group_wake(std::uint64_t group, std::int32_t from) { group_of_sender(group, from)->drive_segment(); }
void serve_group_hello(std::uint64_t group, std::int32_t from) { (void)group_of_sender(group, from); }

}  // namespace ferry::inline v0::detail
