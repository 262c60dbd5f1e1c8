// Backends and transports that the compiler must refuse with a clear message. Run by must_not_compile.py.

#include <memory>
#include <string>
#include <string_view>

#include <ferry/rpc/worker.hpp>

struct twin {};
template <>
struct ferry::backend_traits<twin> : ferry::backend_traits<ferry::native> {};
struct other {};
template <>
struct ferry::backend_traits<other> : ferry::backend_traits<ferry::native> {
  static constexpr std::string_view name = "other";
};

using init_result = std::unique_ptr<ferry::agent>;
struct own_options : ferry::rpc_options {};
struct no_name {};
template <>
struct ferry::backend_traits<no_name> {
  using options_type = own_options;
  static options_type construct_options(ferry::rpc_options base);
  static init_result init(std::shared_ptr<ferry::store>, const ferry::worker_config&, const options_type&);
};
struct no_options_type {};
template <>
struct ferry::backend_traits<no_options_type> {
  static constexpr std::string_view name = "no_options_type";
};
struct foreign_options {};
template <>
struct ferry::backend_traits<foreign_options> {
  static constexpr std::string_view name = "foreign_options";
  using options_type = std::string;
};
struct no_construct {};
template <>
struct ferry::backend_traits<no_construct> {
  static constexpr std::string_view name = "no_construct";
  using options_type = own_options;
  static init_result init(std::shared_ptr<ferry::store>, const ferry::worker_config&, const options_type&);
};
struct no_init {};
template <>
struct ferry::backend_traits<no_init> {
  static constexpr std::string_view name = "no_init";
  using options_type = own_options;
  static options_type construct_options(ferry::rpc_options base);
};

struct usable_transport {
  static std::string unusable();
};
struct opened_transport {
  static std::shared_ptr<ferry::transport> open(ferry::reactor&);
};
struct transport_without_name {};
template <>
struct ferry::transport_traits<transport_without_name> : usable_transport, opened_transport {
  static constexpr int priority = 1;
};
struct transport_without_priority {};
template <>
struct ferry::transport_traits<transport_without_priority> : usable_transport, opened_transport {
  static constexpr std::string_view name = "a";
};
struct transport_without_unusable {};
template <>
struct ferry::transport_traits<transport_without_unusable> : opened_transport {
  static constexpr std::string_view name = "a";
  static constexpr int priority = 1;
};
struct transport_without_open {};
template <>
struct ferry::transport_traits<transport_without_open> : usable_transport {
  static constexpr std::string_view name = "a";
  static constexpr int priority = 1;
};
struct second_tcp {};
template <>
struct ferry::transport_traits<second_tcp> : ferry::transport_traits<ferry::tcp> {};

template <class... Tags>
void needs_backends() {
  (void)ferry::backend_list<Tags...>::find("native");
}
template <class... Tags>
void needs_transports() {
  (void)ferry::transport_list<Tags...>::factories();
}

void use(const ferry::worker_config& config) {
  needs_backends<ferry::native>();
  needs_backends<twin, other>();
  needs_transports<ferry::tcp, ferry::unix_domain>();
  (void)config;

#if CASE == 1  // expect: two backends of a backend_list have the same name
  needs_backends<ferry::native, twin>();
#endif
#if CASE == 2  // expect: backend_traits of this backend lacks `name`
  needs_backends<ferry::native, no_name>();
#endif
#if CASE == 3  // expect: a backend_list names at least one backend
  needs_backends<>();
#endif
#if CASE == 4  // expect: this type is no backend: specialise ferry::backend_traits for it
  needs_backends<int>();
#endif
#if CASE == 5  // expect: backend_traits of this backend lacks `options_type`
  needs_backends<no_options_type>();
#endif
#if CASE == 6  // expect: `options_type` of this backend does not derive (publicly) from ferry::rpc_options
  needs_backends<foreign_options>();
#endif
#if CASE == 7  // expect: backend_traits of this backend lacks `construct_options`
  needs_backends<no_construct>();
#endif
#if CASE == 8  // expect: backend_traits of this backend lacks `init`: add static std::unique_ptr<ferry::agent>
  needs_backends<no_init>();
#endif
#if CASE == 9  // expect: backend_traits of this backend lacks `init`
  (void)ferry::init_rpc<no_init>(config, own_options{});
#endif
#if CASE == 10  // expect: these options are not of this backend's options_type
  (void)ferry::init_rpc<ferry::native>(config, own_options{});
#endif
#if CASE == 11  // expect: these options do not name their backend
  (void)ferry::init_rpc(config, own_options{});
#endif
#if CASE == 12  // expect: several backends of this backend_list have this options_type
  (void)ferry::init_rpc(ferry::backend_list<ferry::native, other>(), config, ferry::native_options{});
#endif
#if CASE == 13  // expect: no backend of this backend_list has this options_type
  (void)ferry::init_rpc(ferry::backend_list<ferry::native>(), config, own_options{});
#endif
#if CASE == 14  // expect: the backend that these options name (`using backend = ...`, possibly of a base class)
  struct derived_options : ferry::native_options {};
  (void)ferry::init_rpc(config, derived_options{});
#endif
#if CASE == 15  // expect: backend_traits of this backend lacks `init`
  (void)ferry::construct_rpc_backend_options<no_init>();
#endif

#if CASE == 21  // expect: transport_traits of this transport lacks `name`
  needs_transports<ferry::tcp, transport_without_name>();
#endif
#if CASE == 22  // expect: transport_traits of this transport lacks `priority`
  needs_transports<transport_without_priority>();
#endif
#if CASE == 23  // expect: transport_traits of this transport lacks `unusable`
  needs_transports<transport_without_unusable>();
#endif
#if CASE == 24  // expect: transport_traits of this transport lacks `open`
  needs_transports<transport_without_open>();
#endif
#if CASE == 25  // expect: two transports of a transport_list have the same name
  needs_transports<ferry::tcp, second_tcp>();
#endif
#if CASE == 26  // expect: this type is no transport: specialise ferry::transport_traits for it
  (void)ferry::backend_list<ferry::native_over<ferry::transport_list<int>>>::find("native");
#endif
#if CASE == 27  // expect: a transport_list names at least one transport
  needs_transports<>();
#endif
}
