#include <ferry/base/method_name.hpp>

#include <string_view>

#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>

namespace ferry::inline v0::detail {
namespace {

using std::string_view;

bool take(string_view& text, string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Removes one pair of parentheses if it encloses the whole text.
void strip_parentheses(string_view& text) {
  if (text.empty() || text.front() != '(' || text.back() != ')') return;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')' && --depth == 0 && i + 1 != text.size()) return;
  }
  text = text.substr(1, text.size() - 2);
}

// "int ns::add<int>(int, int)" -> "ns::add<int>", "model::g(int) const" -> "model::g".
string_view qualified_name(string_view text) {
  constexpr string_view anonymous = "(anonymous namespace)";
  constexpr string_view operator_word = "operator";
  std::size_t start = 0;  // after the last space outside brackets: what precedes it is the result type
  int depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    const string_view rest = text.substr(i);
    if (rest.substr(0, anonymous.size()) == anonymous) {
      i += anonymous.size();
    } else if (depth == 0 && rest.substr(0, operator_word.size()) == operator_word) {
      // The symbols of an operator are not brackets.
      i += operator_word.size();
      if (text.substr(i, 2) == "()") i += 2;
      while (i < text.size() && text[i] != '(' && text[i] != '<') ++i;
      if (i < text.size() && text[i] == '<' && i + 1 < text.size() && (text[i + 1] == '<' || text[i + 1] == '='))
        i += 2;
      if (i < text.size() && text[i] == '<' && text.substr(i - 8, 8) == operator_word) ++i;
      while (i < text.size() && text[i] != '(' && text[i] != '<') ++i;
    } else {
      const char c = text[i];
      if (depth == 0 && c == '(') return text.substr(start, i - start);
      if (c == '<' || c == '(' || c == '[' || c == '{') ++depth;
      if (c == '>' || c == ')' || c == ']' || c == '}') --depth;
      if (depth == 0 && c == ' ') start = i + 1;
      ++i;
    }
  }
  return text.substr(start);
}

constexpr string_view abi_mark = "[abi:";  // how demanglers show a tag

// A function whose result has std::string in it, and no parameter, has an ABI tag in its mangled name: with GCC always, with Clang only
// where the result type is not named before. Only the demangled text tells tags from identifiers.
std::string without_abi_tags(std::string encoding, const std::type_info& tag) {
  const std::string shown = demangle(tag.name());
  for (std::size_t at = shown.find(abi_mark); at != std::string::npos; at = shown.find(abi_mark, at + 1)) {
    const std::size_t start = at + abi_mark.size();
    const std::string name = shown.substr(start, shown.find(']', start) - start);
    const std::string mangled = "B" + std::to_string(name.size()) + name;
    for (auto found = encoding.find(mangled); found != std::string::npos; found = encoding.find(mangled, found))
      encoding.erase(found, mangled.size());
  }
  return encoding;
}

void erase_abi_marks(std::string& text) {
  for (auto at = text.find(abi_mark); at != std::string::npos; at = text.find(abi_mark, at)) {
    const auto end = text.find(']', at);
    if (end == std::string::npos) return;
    text.erase(at, end + 1 - at);
  }
}

}  // namespace

std::string mangled_method(const std::type_info& tag) {
  // N5ferry2v06detail10method_tagI <type> XadL_Z <encoding> E E E E, where Clang may write Xcv <back reference> adL_Z.
  // The type must stay: the encoding refers back to it.
  const string_view name = tag.name();
  const string_view marker = "method_tagI";
  const auto at = name.find(marker);
  const auto symbol = name.find("adL_Z", at == string_view::npos ? 0 : at);
  if (at == string_view::npos || symbol == string_view::npos || name.size() < symbol + 8) {
    throw_error(errc::invalid_argument, "the template argument " + demangle(tag.name()) +
                                            " does not name a function; pass a function or member function itself");
  }
  string_view type = name.substr(at + marker.size(), symbol - at - marker.size());
  if (const auto conversion = type.rfind("Xcv"); conversion != string_view::npos) {
    // Xcv and one back reference, S_ or S<digits>_: the last item before the symbol.
    const string_view reference = type.substr(conversion + 3);
    const bool whole = reference.size() >= 2 && reference.front() == 'S' && reference.find('_') == reference.size() - 1;
    if (whole) type = type.substr(0, conversion + 1);
  }
  if (!type.empty() && type.back() == 'X') type.remove_suffix(1);
  string_view encoding = name.substr(symbol + 3);  // from _Z
  encoding.remove_suffix(4);                       // closes L, X, I, N
  return without_abi_tags(std::string(encoding), tag) + "." + std::string(type);
}

// Names with template arguments, substitutions and operators stay whole: only a whole demangler finds their ends, and substitutions may
// stand for the types behind the dot.
std::string_view name_without_types(std::string_view mangled) noexcept {
  const std::string_view symbol = mangled.substr(0, mangled.find('.'));
  if (!symbol.starts_with("_Z")) return symbol;  // extern "C"
  std::size_t at = 2;
  const bool nested = at < symbol.size() && symbol[at] == 'N';
  if (nested) at = symbol.find_first_not_of("rVKRO", at + 1);
  bool any = false;
  while (at < symbol.size()) {
    if (nested && any && symbol[at] == 'E') return symbol.substr(0, at + 1);
    if (symbol[at] == 'L') ++at;
    std::size_t length = 0;
    const std::size_t digits = at;
    for (; at < symbol.size() && symbol[at] >= '0' && symbol[at] <= '9' && length < symbol.size(); ++at)
      length = length * 10 + static_cast<std::size_t>(symbol[at] - '0');
    if (at == digits || length > symbol.size() - at) return mangled;
    at += length;
    any = true;
    if (!nested) return at < symbol.size() && symbol[at] != 'I' && symbol[at] != 'B' ? symbol.substr(0, at) : mangled;
  }
  return mangled;
}

std::string readable_method(const std::type_info& tag, const std::type_info& type) {
  const std::string whole = demangle(tag.name());
  const std::string type_text = demangle(type.name());
  string_view text = whole;
  const auto start = text.find("method_tag<");
  if (start == string_view::npos || text.back() != '>') return whole;  // a demangler that does not know the form
  text.remove_prefix(start + 11);
  text.remove_suffix(1);
  if (!take(text, type_text) || !take(text, ", ")) return whole;
  strip_parentheses(text);
  if (take(text, type_text)) {  // a conversion: (type)(&f)
    take(text, ")");
    strip_parentheses(text);
  } else if (text.front() == '(' && take(text, "(" + type_text + ")")) {
    strip_parentheses(text);
  }
  take(text, "&");
  strip_parentheses(text);
  std::string name(qualified_name(text));
  const string_view spelled_out = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  for (auto found = name.find(spelled_out); found != std::string::npos; found = name.find(spelled_out)) {
    name.replace(found, spelled_out.size(), "std::string");
  }
  erase_abi_marks(name);
  return name;
}

}  // namespace ferry::inline v0::detail
