#pragma once

// Combinators: wait for all of several futures, or for the first.

#include <atomic>
#include <cstddef>
#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include <ferry/rpc/future.hpp>
#include <ferry/rpc/promise.hpp>

namespace ferry::inline v0 {

namespace detail {

/// Attaches to several inputs and notifies a reference-counted owner of each completion. The part of when_all and
/// when_any that does not depend on types.
class collector {
 public:
  collector(const collector&) = delete;
  collector& operator=(const collector&) = delete;

 protected:
  explicit collector(std::size_t inputs);
  virtual ~collector() = default;

  /// Call once for each input `index`, then all_watched(). Holds a reference to the owner until the input is complete.
  void watch(std::size_t index, future_state_base& input) noexcept;
  void all_watched() noexcept { count_down(); }

  /// Called on the thread that completes the input, or on the one that calls watch().
  virtual void input_completed(std::size_t index, future_state_base& input) noexcept = 0;
  /// Called once, after all_watched() and the completion of every input.
  virtual void all_completed() noexcept = 0;
  virtual future_state_base& owner() noexcept = 0;

 private:
  struct node : continuation {
    collector* self = nullptr;
    future_state_base* input = nullptr;
    std::size_t index = 0;
  };
  static void completed(continuation* item) noexcept;
  void count_down() noexcept {
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) all_completed();
  }

  std::unique_ptr<node[]> nodes_;
  std::atomic<std::size_t> remaining_;
};

[[noreturn]] void throw_empty_input(std::size_t index);
[[noreturn]] void throw_nothing_to_wait_for();

template <class T>
void check_input(const future<T>& input, std::size_t index) {
  if (!input.valid()) throw_empty_input(index);
}

template <class T>
using element_t = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
template <class T>
element_t<T> get_element(future<T>&& input) {
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return std::move(input).get();
  }
}

/// Fails with the first error at once; otherwise passes the inputs to `Gather`, which makes the result from them.
template <class Inputs, class Result, class Gather>
class when_all_state final : public future_state<Result>, private collector {
 public:
  template <class ForEach>
  static future<Result> make(Inputs inputs, std::size_t count, ForEach for_each) {
    auto self = ref_ptr<when_all_state>::adopt(new when_all_state(std::move(inputs), count));
    std::size_t index = 0;
    for_each(self->inputs_, [&](const auto& input) { self->watch(index++, *input.shared_state()); });
    self->all_watched();
    return future<Result>(std::move(self));
  }

 private:
  when_all_state(Inputs inputs, std::size_t count) : collector(count), inputs_(std::move(inputs)) {}

  void input_completed(std::size_t, future_state_base& input) noexcept override {
    if (input.failed()) this->try_set_error(input.error());
  }
  void all_completed() noexcept override {
    if (this->ready()) return;  // failed or cancelled
    auto failure = caught([&] {
      if constexpr (std::is_void_v<Result>) {
        this->try_set_value();
      } else {
        this->try_set_value(Gather{}(std::move(inputs_)));
      }
    });
    if (failure) this->try_set_error(std::move(failure));
  }
  future_state_base& owner() noexcept override { return *this; }

  Inputs inputs_;
};

struct gather_vector {
  template <class T>
  std::vector<T> operator()(std::vector<future<T>>&& inputs) const {
    std::vector<T> values;
    values.reserve(inputs.size());
    for (auto& input : inputs) values.push_back(std::move(input).get());
    return values;
  }
};
struct gather_tuple {
  template <class... T>
  std::tuple<element_t<T>...> operator()(std::tuple<future<T>...>&& inputs) const {
    return std::apply([](auto&... input) { return std::tuple<element_t<T>...>(get_element(std::move(input))...); },
                      inputs);
  }
};

}  // namespace detail

/// A future of the values of `inputs`, in their order, once all are complete; future<void> for futures of void. Fails
/// with the first error at once, without waiting for the rest. Throws errc::no_state if an input is empty. The value of
/// an input without another handle is moved, otherwise copied. Cancelling the result does not cancel the inputs.
template <class T>
auto when_all(std::vector<future<T>> inputs) {
  using result = std::conditional_t<std::is_void_v<T>, void, std::vector<detail::element_t<T>>>;
  for (std::size_t i = 0; i < inputs.size(); ++i) detail::check_input(inputs[i], i);
  const std::size_t count = inputs.size();
  return detail::when_all_state<std::vector<future<T>>, result, detail::gather_vector>::make(
      std::move(inputs), count, [](const auto& all, auto&& watch) {
        for (const auto& input : all) watch(input);
      });
}

/// Like the above for futures of several types: a future of a std::tuple, with std::monostate for each future<void>;
/// future<void> if all are of void, or there are none.
template <class... T>
auto when_all(future<T>... inputs) {
  using result = std::conditional_t<(std::is_void_v<T> && ...), void, std::tuple<detail::element_t<T>...>>;
  std::size_t index = 0;
  (detail::check_input(inputs, index++), ...);
  return detail::when_all_state<std::tuple<future<T>...>, result, detail::gather_tuple>::make(
      std::tuple<future<T>...>(std::move(inputs)...), sizeof...(T),
      [](const auto& all, auto&& watch) { std::apply([&](const auto&... input) { (watch(input), ...); }, all); });
}

/// Blocks until all of `inputs` are complete and returns their values as when_all() does; throws the first error at
/// once, while other inputs may still be pending.
template <class T>
auto wait_all(std::vector<future<T>> inputs) {
  return when_all(std::move(inputs)).get();
}
template <class... T>
auto wait_all(future<T>... inputs) {
  return when_all(std::move(inputs)...).get();
}

/// The first of several futures to complete.
template <class T>
struct when_any_result {
  std::size_t index = 0;  ///< index among the inputs
  future<T> first;        ///< complete, with a value or an error
};

namespace detail {

template <class T>
class when_any_state final : public future_state<when_any_result<T>>, private collector {
 public:
  static future<when_any_result<T>> make(std::vector<future<T>> inputs) {
    if (inputs.empty()) throw_nothing_to_wait_for();
    for (std::size_t i = 0; i < inputs.size(); ++i) check_input(inputs[i], i);
    auto self = ref_ptr<when_any_state>::adopt(new when_any_state(inputs.size()));
    for (std::size_t i = 0; i < inputs.size(); ++i) self->watch(i, *inputs[i].shared_state());
    self->all_watched();
    return future<when_any_result<T>>(std::move(self));
  }

 private:
  explicit when_any_state(std::size_t inputs) : collector(inputs) {}

  void input_completed(std::size_t index, future_state_base& input) noexcept override {
    if (this->ready()) return;
    auto first = ref_ptr<future_state<T>>::share(static_cast<future_state<T>*>(&input));
    this->try_set_value(when_any_result<T>{index, future<T>(std::move(first))});
  }
  void all_completed() noexcept override {}
  future_state_base& owner() noexcept override { return *this; }
};

}  // namespace detail

/// Completes with the first input that completes, whether with a value or an error; never fails itself. Throws
/// errc::invalid_argument if there are no inputs, errc::no_state if one is empty. The other inputs continue.
template <class T>
future<when_any_result<T>> when_any(std::vector<future<T>> inputs) {
  return detail::when_any_state<T>::make(std::move(inputs));
}
template <class T, class... U>
auto when_any(future<T> first, future<U>... rest) {
  static_assert((std::is_same_v<T, U> && ...),
                "when_any(futures...): the futures must have one type; give each a then() that makes a std::variant");
  std::vector<future<T>> inputs;
  inputs.reserve(1 + sizeof...(U));
  inputs.push_back(std::move(first));
  (inputs.push_back(std::move(rest)), ...);
  return detail::when_any_state<T>::make(std::move(inputs));
}

}  // namespace ferry::inline v0
