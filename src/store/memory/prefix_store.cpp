#include <ferry/store/prefix_store.hpp>

#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {
std::shared_ptr<store> checked(std::shared_ptr<store> wrapped, std::string_view prefix) {
  if (!wrapped) throw_error(errc::invalid_argument, "a prefix_store needs a store to wrap, not a null pointer");
  if (prefix.empty()) throw_error(errc::invalid_argument, "a prefix_store needs a prefix that is not empty");
  return wrapped;
}
}  // namespace
}  // namespace detail

prefix_store::prefix_store(std::string_view prefix, std::shared_ptr<store> wrapped)
    : prefix_(std::string(prefix) + "/"), wrapped_(detail::checked(std::move(wrapped), prefix)) {
  set_max_value_bytes(wrapped_->max_value_bytes());
  set_default_timeout(wrapped_->default_timeout());
}

void prefix_store::close() noexcept { wrapped_->close(); }
bool prefix_store::drain(timeout limit) { return wrapped_->drain(limit.value_or(default_timeout())); }
std::string prefix_store::local_address() const { return wrapped_->local_address(); }
std::string prefix_store::describe() const { return fmt::format("{} below '{}'", wrapped_->describe(), prefix_); }

std::string prefix_store::full(std::string_view key) const {
  std::string whole = prefix_;
  whole += key;
  wrapped_->check_key(whole);
  return whole;
}

void prefix_store::do_set(std::string_view key, std::string_view value, deadline until) {
  wrapped_->do_set(full(key), value, until);
}
std::vector<std::string> prefix_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  std::vector<std::string> whole;
  whole.reserve(keys.size());
  for (const std::string& key : keys) whole.push_back(full(key));
  return wrapped_->do_get(whole, values, until);
}
std::optional<std::string> prefix_store::do_try_get(std::string_view key, deadline until) {
  return wrapped_->do_try_get(full(key), until);
}
std::int64_t prefix_store::do_add(std::string_view key, std::int64_t delta, deadline until) {
  return wrapped_->do_add(full(key), delta, until);
}
std::string prefix_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                         deadline until) {
  return wrapped_->do_compare_set(full(key), expected, desired, until);
}
bool prefix_store::do_erase(std::string_view key, deadline until) { return wrapped_->do_erase(full(key), until); }
std::vector<store_entry> prefix_store::do_list(std::string_view prefix, deadline until) {
  std::vector<store_entry> found = wrapped_->do_list(full(prefix), until);
  for (store_entry& each : found) each.key.erase(0, prefix_.size());
  return found;
}
std::size_t prefix_store::do_count(std::string_view prefix, deadline until) {
  return wrapped_->do_count(full(prefix), until);
}
store_change prefix_store::do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) {
  return wrapped_->do_wait_change(full(key), last_version, until);
}

}  // namespace ferry::inline v0
