#include <ferry/base/type_name.hpp>

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace ferry::inline v0::detail {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool identifier_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Inline namespaces of the standard libraries: __cxx11, __1, _V2, __ndk1 ...
bool library_namespace(std::string_view component) {
  return component.size() > 1 && component[0] == '_' &&
         (component[1] == '_' || (component[1] >= 'A' && component[1] <= 'Z')) && component != "_GLOBAL__N_1";
}

// Removes library namespaces after "std::", and spaces that only separate punctuation.
std::string normalise(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_std = false;  // inside a path that starts with std::
  std::size_t i = 0;
  while (i < text.size()) {
    if (identifier_char(text[i])) {
      std::size_t end = i;
      while (end < text.size() && identifier_char(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      const bool qualifies = starts_with(text.substr(end), "::");
      const bool first = !(out.size() >= 2 && out[out.size() - 1] == ':' && out[out.size() - 2] == ':');
      if (first) in_std = word == "std" && qualifies;
      if (in_std && !first && qualifies && library_namespace(word)) {
        i = end + 2;
        continue;
      }
      out += word;
      i = end;
    } else {
      const bool between_words = text[i] == ' ' && !out.empty() && identifier_char(out.back()) && i + 1 < text.size() &&
                                 identifier_char(text[i + 1]);
      if (text[i] != ' ' || between_words) out += text[i];
      ++i;
    }
  }
  return out;
}

// Where the template argument list at the end of `name` starts; npos if there is none.
std::size_t last_argument_list(std::string_view name) {
  if (name.empty() || name.back() != '>') return std::string_view::npos;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    const char c = name[i];
    if (c == '>' || c == ')') ++depth;
    if (c == '<' || c == '(') --depth;
    if (depth == 0) return i;
  }
  return std::string_view::npos;
}

// std::chrono::duration -> duration. Only for names of std: namespaces of users distinguish their types.
std::string_view without_std(std::string_view name) {
  if (!starts_with(name, "std::")) return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    if (name[i] == '>' || name[i] == ')') ++depth;
    if (name[i] == '<' || name[i] == '(') --depth;
    if (depth == 0 && name[i] == ':') return name.substr(i + 1);
  }
  return name;
}

}  // namespace

std::string demangle(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                    &std::free);
  return status == 0 && text ? std::string(text.get()) : std::string(mangled);
}

std::string demangled_type(const std::type_info& type) { return normalise(demangle(type.name())); }

std::string readable_names(std::string_view text) {
  constexpr std::string_view versioned = "ferry::v0::";
  constexpr std::string_view plain = "ferry::";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const bool starts_a_path = i == 0 || (!identifier_char(text[i - 1]) && text[i - 1] != ':');
    if (starts_a_path && starts_with(text.substr(i), versioned)) {
      out += plain;
      i += versioned.size();
    } else {
      out += text[i++];
    }
  }
  return out;
}

std::string readable_type(const std::type_info& type) { return readable_names(demangled_type(type)); }

void append_class(std::string& out, const std::type_info& type) {
  const std::string name = demangled_type(type);
  out += without_std(name);
}

void append_number(std::string& out, std::int64_t value) { out += std::to_string(value); }

void append_argument(std::string& arguments, std::string_view argument) {
  // Rendered without std::, so that a user's own allocator or comparator (whose namespace shows) is kept.
  for (std::string_view implied : {"allocator<", "char_traits<", "default_delete<", "less<", "hash<", "equal_to<"}) {
    if (starts_with(argument, implied)) return;
  }
  if (!arguments.empty()) arguments += ',';
  arguments += argument;
}

void append_instance(std::string& out, const std::type_info& type, std::string_view arguments) {
  const std::string whole = demangled_type(type);
  const std::string_view name = without_std(std::string_view(whole).substr(0, last_argument_list(whole)));
  if (arguments == "char" && name == "basic_string" && starts_with(whole, "std::")) {
    out += "string";
    return;
  }
  out += name;
  out += '<';
  out += arguments;
  out += '>';
}

}  // namespace ferry::inline v0::detail
