// A type that is not a channel is rejected with an explanation. Run by must_not_compile.py.

#include <string>
#include <string_view>

#include <ferry/transport/channel.hpp>

struct plain {};
struct nameless {};
struct without_priority {};
struct silent {};
struct idle {};
struct good {};
struct namesake {};

struct parts {
  static constexpr std::string_view name = "good";
  static constexpr int priority = 1;
  static std::string unusable(const ferry::channel_path&) { return {}; }
  static ferry::tensor copy(const ferry::tensor& packed, ferry::device, const ferry::stream&) { return packed; }
};

template <>
struct ferry::channel_traits<good> : parts {};
template <>
struct ferry::channel_traits<namesake> : parts {};
template <>
struct ferry::channel_traits<nameless> {
  static constexpr int priority = 1;
  static std::string unusable(const channel_path&) { return {}; }
  static tensor copy(const tensor& packed, device, const stream&) { return packed; }
};
template <>
struct ferry::channel_traits<without_priority> {
  static constexpr std::string_view name = "without_priority";
  static std::string unusable(const channel_path&) { return {}; }
  static tensor copy(const tensor& packed, device, const stream&) { return packed; }
};
template <>
struct ferry::channel_traits<silent> {
  static constexpr std::string_view name = "silent";
  static constexpr int priority = 1;
  static tensor copy(const tensor& packed, device, const stream&) { return packed; }
};
template <>
struct ferry::channel_traits<idle> {
  static constexpr std::string_view name = "idle";
  static constexpr int priority = 1;
  static std::string unusable(const channel_path&) { return {}; }
};

static_assert(ferry::tensor_channel<good> && ferry::tensor_channel<ferry::cuda_staged>);
static_assert(!ferry::tensor_channel<idle> && !ferry::tensor_channel<plain>);
const auto fine = ferry::channel_list<good, ferry::inline_tensors>::factories();

#if CASE == 1  // expect: this type is no channel: specialise ferry::channel_traits for it
const auto made = ferry::channel_list<plain>::factories();
#endif
#if CASE == 2  // expect: lacks `name`: add static constexpr std::string_view name
const auto made = ferry::channel_list<nameless>::factories();
#endif
#if CASE == 3  // expect: lacks `priority`: add static constexpr int priority
const auto made = ferry::channel_list<without_priority>::factories();
#endif
#if CASE == 4  // expect: lacks `unusable`: add static std::string unusable
const auto made = ferry::channel_list<silent>::factories();
#endif
#if CASE == 5  // expect: moves nothing: add open_source and open_sink, or copy
const auto made = ferry::channel_list<idle>::factories();
#endif
#if CASE == 6  // expect: two channels of a channel_list have the same name
const auto made = ferry::channel_list<good, namesake>::factories();
#endif
#if CASE == 7  // expect: a channel_list names at least one channel
const auto made = ferry::channel_list<>::factories();
#endif
