#include <ferry/rpc/combinators.hpp>

#include <string>

namespace ferry::inline v0::detail {

// One more than the inputs: all_watched() counts for one, so that the result cannot complete during the set-up.
collector::collector(std::size_t inputs) : nodes_(std::make_unique<node[]>(inputs)), remaining_(inputs + 1) {}

void collector::watch(std::size_t index, future_state_base& input) noexcept {
  node& item = nodes_[index];
  item.self = this;
  item.input = &input;
  item.index = index;
  item.invoke = &completed;
  item.where.values = current_values();  // for the code of users that copies results
  input.add_ref();
  owner().add_ref();
  input.attach(&item);
}

void collector::completed(continuation* item) noexcept {
  auto* done = static_cast<node*>(item);
  collector* self = done->self;
  future_state_base& owner = self->owner();
  {
    const auto input = ref_ptr<future_state_base>::adopt(done->input);
    self->input_completed(done->index, *input);
  }
  self->count_down();
  owner.release();  // frees *done
}

void throw_empty_input(std::size_t index) {
  throw_error(errc::no_state, "future number " + std::to_string(index) + " of when_all() or when_any() is empty");
}
void throw_nothing_to_wait_for() {
  throw_error(errc::invalid_argument, "when_any() of no futures would never complete; pass at least one");
}

}  // namespace ferry::inline v0::detail
