#include <ferry/rpc/exceptions.hpp>

#include <algorithm>
#include <any>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <ios>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <system_error>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <cxxabi.h>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/rpc/future.hpp>

#include "../../base/what_of.hpp"
#include "../worker/worker_core.hpp"
#include "method_table.hpp"

namespace ferry::inline v0::detail {
namespace {

// The class that std::throw_with_nested() throws has no name that users know: it derives from theirs and from
// std::nested_exception. Only the C++ ABI tells what it derives from.
const std::type_info& without_nesting(const std::type_info& thrown) noexcept {
#ifdef __GLIBCXX__
  const auto* made = dynamic_cast<const abi::__vmi_class_type_info*>(&thrown);
  if (made && std::string_view(thrown.name()).starts_with("St17_Nested_exception") && made->__base_count == 2)
    return *made->__base_info[0].__base_type;
#endif
  return thrown;
}

// Its text is that of the sender, whose message of the code this program cannot know.
class foreign_system_error final : public std::system_error {
 public:
  foreign_system_error(int value, const std::error_category& category, std::string text)
      : std::system_error(value, category), text_(std::make_shared<const std::string>(std::move(text))) {}
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // copies of exceptions must not throw
};

// Only the standard library makes one with a text; that of a wrong index is the usual one.
std::exception_ptr variant_access(std::string_view what) {
  try {
    (void)std::get<0>(std::variant<int, char>('a'));
  } catch (const std::bad_variant_access& wrong_index) {
    if (what == wrong_index.what()) return std::current_exception();
  }
  return std::make_exception_ptr(std::bad_variant_access());
}

// The type that users catch, of classes whose names are a library's own.
const std::type_info& public_type(const std::type_info& thrown) noexcept {
  if (std::string_view(thrown.name()) == "St13__ios_failure")
    return typeid(std::ios_base::failure);  // libstdc++'s streams
  if (thrown == typeid(foreign_system_error)) return typeid(std::system_error);
  return thrown;
}

// Null for what is no C++ exception: it has no std::exception_ptr.
const std::type_info* type_of(const std::exception_ptr& thrown) {
  if (!thrown) return nullptr;
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return type ? &public_type(without_nesting(*type)) : nullptr;
  }
}

std::string own_text(const std::exception_ptr& thrown) {
  if (!thrown) return "no C++ exception";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return what_of(e);
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text ? text : "";
  } catch (...) {
    return "not a std::exception";
  }
}

// Null where none is nested, as where the exception was thrown outside of a catch block.
std::exception_ptr cause_of(const std::exception_ptr& thrown) {
  if (!thrown) return nullptr;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::nested_exception& e) {
    return e.nested_ptr();
  } catch (...) {
    return nullptr;
  }
}

constexpr std::string_view caused_by = "; caused by ";

// The exceptions that are nested in it, with their types.
std::string text_of_causes(const std::exception_ptr& thrown) {
  constexpr int most_causes = 16;
  std::string text;
  std::exception_ptr cause = cause_of(thrown);
  for (int count = 0; cause && count != most_causes; ++count, cause = cause_of(cause)) {
    const std::type_info* const type = type_of(cause);
    text += fmt::format("{}{}: {}", caused_by, type ? readable_type(*type) : "unknown", own_text(cause));
  }
  return cause ? text + "; and further causes" : text;
}

std::string thrown_text(const std::exception_ptr& thrown) { return own_text(thrown) + text_of_causes(thrown); }

template <class T>
exception_codec text_only(std::string_view name) {
  return {name, &typeid(T), [](const std::exception_ptr&) { return std::string(); },
          [](std::string_view what, std::string_view) { return std::make_exception_ptr(T(std::string(what))); }};
}
template <class T>
exception_codec nothing(std::string_view name) {
  return {name, &typeid(T), [](const std::exception_ptr&) { return std::string(); },
          [](std::string_view, std::string_view) { return std::make_exception_ptr(T()); }};
}

int parse_code(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Of an error_code whose category this program does not know. Categories are compared by address and live for ever.
class foreign_category final : public std::error_category {
 public:
  explicit foreign_category(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] const char* name() const noexcept override { return name_.c_str(); }
  [[nodiscard]] std::string message(int value) const override { return fmt::format("{} {}", name_, value); }

 private:
  std::string name_;
};

// The peer chooses the name: after so many, and where it is too long, they are all one.
constexpr std::size_t most_foreign_categories = 64;
constexpr std::size_t longest_category = 128;

const std::error_category& foreign_category_named(std::string_view name) {
  static auto* mutex = new std::mutex;  // outlive static destruction on purpose
  static auto* known = new std::map<std::string, foreign_category, std::less<>>;
  const std::lock_guard lock(*mutex);
  if (name.size() > longest_category) name = {};
  auto found = known->find(name);
  if (found == known->end()) {
    if (known->size() >= most_foreign_categories) name = {};
    const std::string shown(name.empty() ? "another program's" : name);
    found = known->try_emplace(std::string(name), shown).first;
  }
  return found->second;
}

const std::error_category* category_named(std::string_view name) noexcept {
  for (const std::error_category* each : {&std::generic_category(), &std::system_category(), &std::iostream_category(),
                                          &std::future_category(), &error_category()}) {
    if (name == each->name()) return each;
  }
  return nullptr;
}

std::string encode_code(const std::error_code& code) {
  return fmt::format("{} {}", code.category().name(), code.value());
}

// Takes it out of the text of an exception, which it ends, but for the causes. False: it is not there.
bool take_suffix(std::string& text, const std::string& suffix) {
  if (text.ends_with(suffix)) {
    text.erase(text.size() - suffix.size());
    return true;
  }
  const auto at = text.find(suffix + std::string(caused_by));
  if (at != std::string::npos) text.erase(at, suffix.size());
  return at != std::string::npos;
}

// "<category> <value>". None: this program does not know the category.
std::optional<std::error_code> decode_code(std::string_view bytes) {
  const std::size_t space = std::min(bytes.rfind(' '), bytes.size());
  const std::error_category* const category = category_named(bytes.substr(0, space));
  if (!category) return std::nullopt;
  return std::error_code(parse_code(bytes.substr(std::min(space + 1, bytes.size()))), *category);
}

std::exception_ptr of_foreign_category(std::string_view what, std::string_view bytes) {
  const std::size_t space = std::min(bytes.rfind(' '), bytes.size());
  return std::make_exception_ptr(foreign_system_error(parse_code(bytes.substr(std::min(space + 1, bytes.size()))),
                                                      foreign_category_named(bytes.substr(0, space)),
                                                      std::string(what)));
}

std::string encode_system_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& e) {
    return encode_code(e.code());
  }
}
// Its text ends with ": <message of the code>", which the constructor adds again.
template <class T>
std::exception_ptr decode_system_error(std::string_view what, std::string_view bytes) {
  const auto code = decode_code(bytes);
  if (!code) return of_foreign_category(what, bytes);
  std::string text(what);
  (void)take_suffix(text, ": " + code->message());
  if constexpr (std::is_same_v<T, std::system_error>) {
    return std::make_exception_ptr(what == code->message() ? T(*code) : T(*code, text));
  } else {
    return std::make_exception_ptr(T(text, *code));
  }
}

// "<category> <value>", a zero byte, the first path, a zero byte, the second one. The text: "filesystem error: <text>: <message of the
// code> [<first path>] [<second path>]".
std::string encode_filesystem_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::filesystem::filesystem_error& e) {
    std::string bytes = encode_code(e.code());
    for (const std::filesystem::path& each : {e.path1(), e.path2()}) bytes += '\0' + each.native();
    return bytes;
  }
}
std::exception_ptr decode_filesystem_error(std::string_view what, std::string_view bytes) {
  std::array<std::string_view, 3> parts;  // the code and the paths
  for (std::string_view& each : parts) {
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    each = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  const auto code = decode_code(parts[0]);
  if (!code) return of_foreign_category(what, parts[0]);
  constexpr std::string_view before = "filesystem error: ";
  std::string text(what);
  if (text.starts_with(before)) text.erase(0, before.size());
  // How many paths it was made with, which may be empty.
  const std::string message = ": " + code->message();
  const std::string first = fmt::format("{} [{}]", message, parts[1]);
  const std::filesystem::path one(parts[1]);
  const std::filesystem::path two(parts[2]);
  using std::filesystem::filesystem_error;
  if (take_suffix(text, fmt::format("{} [{}]", first, parts[2])))
    return std::make_exception_ptr(filesystem_error(text, one, two, *code));
  if (take_suffix(text, first)) return std::make_exception_ptr(filesystem_error(text, one, *code));
  if (take_suffix(text, message)) return std::make_exception_ptr(filesystem_error(text, *code));
  return std::make_exception_ptr(filesystem_error(text, one, two, *code));
}

// "<value>": the text follows from the code.
std::string encode_future_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::future_error& e) {
    return std::to_string(e.code().value());
  }
}
std::exception_ptr decode_future_error(std::string_view, std::string_view bytes) {
  return std::make_exception_ptr(std::future_error(static_cast<std::future_errc>(parse_code(bytes))));
}

// Lives while a thread runs it.
struct codec_entry {
  explicit codec_entry(const exception_codec& from) : codec(from) {}
  ~codec_entry() { unused->count_down(); }
  codec_entry(const codec_entry&) = delete;
  codec_entry& operator=(const codec_entry&) = delete;

  const exception_codec codec;
  const std::shared_ptr<std::latch> unused = std::make_shared<std::latch>(1);  // for a thread that waits for its end
};
using held_codec = std::shared_ptr<codec_entry>;

// The ones of the library itself, which no plug-in takes away.
const std::vector<exception_codec>& standard_codecs() {
  static const auto* const codecs = new std::vector<exception_codec>{
      text_only<std::invalid_argument>("std::invalid_argument"),
      text_only<std::domain_error>("std::domain_error"),
      text_only<std::length_error>("std::length_error"),
      text_only<std::out_of_range>("std::out_of_range"),
      text_only<std::logic_error>("std::logic_error"),
      text_only<std::range_error>("std::range_error"),
      text_only<std::overflow_error>("std::overflow_error"),
      text_only<std::underflow_error>("std::underflow_error"),
      text_only<std::runtime_error>("std::runtime_error"),
      {"std::system_error", &typeid(std::system_error), &encode_system_error, &decode_system_error<std::system_error>},
      {"std::ios_base::failure", &typeid(std::ios_base::failure), &encode_system_error,
       &decode_system_error<std::ios_base::failure>},
      {"std::filesystem::filesystem_error", &typeid(std::filesystem::filesystem_error), &encode_filesystem_error,
       &decode_filesystem_error},
      {"std::future_error", &typeid(std::future_error), &encode_future_error, &decode_future_error},
      nothing<std::exception>("std::exception"),
      nothing<std::bad_alloc>("std::bad_alloc"),
      nothing<std::bad_array_new_length>("std::bad_array_new_length"),
      nothing<std::bad_any_cast>("std::bad_any_cast"),
      nothing<std::bad_cast>("std::bad_cast"),
      nothing<std::bad_typeid>("std::bad_typeid"),
      nothing<std::bad_exception>("std::bad_exception"),
      nothing<std::bad_weak_ptr>("std::bad_weak_ptr"),
      nothing<std::bad_function_call>("std::bad_function_call"),
      nothing<std::bad_optional_access>("std::bad_optional_access"),
      {"std::bad_variant_access", &typeid(std::bad_variant_access),
       [](const std::exception_ptr&) { return std::string(); },
       [](std::string_view what, std::string_view) { return variant_access(what); }},
  };
  return *codecs;
}

struct codec_table {
  std::shared_mutex mutex;
  std::vector<held_codec> codecs;  // several of one type: libraries that have it, of which the first one serves

  codec_table() {
    for (const exception_codec& each : standard_codecs()) codecs.push_back(std::make_shared<codec_entry>(each));
  }
};
codec_table& codecs_of_process() {
  static auto* instance = new codec_table;  // outlives static destruction on purpose
  return *instance;
}

template <class Matches>
held_codec find_codec(const Matches& matches) {
  const std::shared_lock lock(codecs_of_process().mutex);
  for (const held_codec& each : codecs_of_process().codecs) {
    if (matches(each->codec)) return each;
  }
  return nullptr;
}
held_codec codec_for(const std::type_info& type) {
  return find_codec([&](const exception_codec& codec) { return *codec.type == type; });
}
held_codec codec_for(std::string_view name) {
  return find_codec([&](const exception_codec& codec) { return codec.name == name; });
}

constexpr std::string_view ferry_error_name = "ferry::error";
constexpr std::string_view remote_error_name = "ferry::remote_error";

}  // namespace

void register_exception(const exception_codec& codec) {
  auto entry = std::make_shared<codec_entry>(codec);
  const std::unique_lock lock(codecs_of_process().mutex);
  for (const held_codec& each : codecs_of_process().codecs) {
    const exception_codec& known = each->codec;
    if (known.name != codec.name || *known.type == *codec.type) continue;
    throw_error(errc::invalid_argument,
                fmt::format("register_exceptions: the name '{}' is taken by {}; {} needs another", codec.name,
                            readable_type(*known.type), readable_type(*codec.type)));
  }
  codecs_of_process().codecs.push_back(std::move(entry));
}

void forget_exception(const exception_codec& codec) noexcept {
  // Namespace-scope workers of the program serve until its end.
  if (is_of_program(reinterpret_cast<const void*>(codec.decode))) return;
  held_codec dropped;
  {
    codec_table& table = codecs_of_process();
    const std::unique_lock lock(table.mutex);
    const auto found = std::find_if(table.codecs.begin(), table.codecs.end(), [&](const held_codec& each) {
      return each->codec.decode == codec.decode && each->codec.type == codec.type;
    });
    if (found == table.codecs.end()) return;
    dropped = std::move(*found);
    table.codecs.erase(found);
  }
  const std::shared_ptr<std::latch> unused = dropped->unused;
  dropped.reset();
  unused->wait();
}

std::string describe_exception(const std::exception_ptr& thrown) {
  const std::type_info* type = type_of(thrown);
  if (type && *type == typeid(error)) return thrown_text(thrown);  // it begins with the name of the errc
  return fmt::format("{}: {}", type ? readable_type(*type) : "unknown", thrown_text(thrown));
}

void encode_exception(const std::exception_ptr& thrown, outgoing_message& message) {
  const std::type_info* type = type_of(thrown);
  std::string name = type ? readable_type(*type) : "unknown";
  std::string what = thrown_text(thrown);
  std::string bytes;
  if (const held_codec held = type ? codec_for(*type) : nullptr) {
    name = held->codec.name;
    bytes = held->codec.encode(thrown);
  } else if (thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const remote_error& e) {  // passes through unchanged
      bytes = e.type_name();
      name = remote_error_name;
      what = std::string(e.message()) + text_of_causes(thrown);
    } catch (const error& e) {
      bytes = std::to_string(e.code().value());
      name = ferry_error_name;
      what = std::string(e.message()) + text_of_causes(thrown);
    } catch (...) {
      // No codec has made bytes of it: that of the caller, if there is one of that name, must not be asked to read them.
      what = name + ": " + what;
      bytes = std::exchange(name, remote_error_name);
    }
  }
  encode_values<std::string, std::string, std::string>(message.bytes, message.tensors, name, what, bytes);
}

namespace {

// A callee that does not have a method has only its id.
std::string with_known_methods(std::string text) {
  constexpr std::string_view mark = "'method ";
  constexpr std::size_t digits = 16;
  for (std::size_t at = 0; (at = text.find(mark, at)) != text.npos; at += mark.size()) {
    const std::size_t begin = at + mark.size();
    if (text.size() <= begin + digits || text[begin + digits] != '\'') continue;
    std::uint64_t id = 0;
    const auto [end, problem] = std::from_chars(text.data() + begin, text.data() + begin + digits, id, 16);
    if (problem != std::errc() || end != text.data() + begin + digits) continue;
    if (const std::string name = known_method_name(id); !name.empty())
      text.replace(at + 1, mark.size() - 1 + digits, name);
  }
  return text;
}

}  // namespace

std::exception_ptr decode_exception(const inbound_message& reply, const wire_limits& limits) {
  std::string name;
  std::string what;
  std::string bytes;
  decode_values(reply.payload, reply.tensors, limits, name, what, bytes);
  // An errc unknown to this build (or 0) is handled like an unknown type.
  if (const auto code = static_cast<errc>(parse_code(bytes));
      name == ferry_error_name && errc_name(code) != "unknown") {
    return make_error(code, with_known_methods(std::move(what)));
  }
  if (name == remote_error_name) return std::make_exception_ptr(remote_error(bytes, what));
  if (const held_codec held = codec_for(std::string_view(name))) {
    try {
      return held->codec.decode(what, bytes);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      throw_error(errc::bad_result, fmt::format("{}: {}; its decoder threw {}", name, what,
                                                describe_exception(std::current_exception())));
    }
  }
  return std::make_exception_ptr(remote_error(name, name + ": " + what));
}

}  // namespace ferry::inline v0::detail
