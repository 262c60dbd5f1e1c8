#include "tar.hpp"

#include <algorithm>
#include <stdexcept>

namespace fuzz {
namespace {

constexpr std::size_t block = 512;  // everything begins at a multiple of this

// The parts of a header that are read.
struct field {
  std::size_t offset, length;
  [[nodiscard]] bytes of(bytes header) const { return header.subspan(offset, length); }
};
constexpr field name_field{0, 100}, size_field{124, 12}, checksum_field{148, 8}, type_field{156, 1};
constexpr field magic_field{257, 8}, prefix_field{345, 155};

[[noreturn]] void refuse(std::size_t at, const std::string& what) {
  throw std::runtime_error("no archive of inputs, or a damaged one: at byte " + std::to_string(at) + ": " + what);
}

bool zero(bytes part) {
  return std::all_of(part.begin(), part.end(), [](std::byte each) { return each == std::byte{0}; });
}

/// Up to the first null character.
std::string_view text_in(bytes part) {
  const std::string_view text = text_of(part);
  return text.substr(0, text.find('\0'));
}

/// Octal digits, ended by a space, a null character or the end of the field. Twelve of them are less than 2^36.
std::uint64_t number_in(bytes part, std::size_t at) {
  std::string_view digits = text_in(part);
  digits = digits.substr(0, digits.find(' '));
  if (digits.empty() || digits.find_first_not_of("01234567") != std::string_view::npos) refuse(at, "no octal number");
  std::uint64_t value = 0;
  for (const char digit : digits) value = value * 8 + static_cast<std::uint64_t>(digit - '0');
  return value;
}

/// The sum of the header's bytes, with spaces where the sum itself stands.
std::uint64_t sum_of(bytes header) {
  std::uint64_t sum = 0;
  for (const std::byte each : header) sum += std::to_integer<std::uint64_t>(each);
  for (const std::byte each : checksum_field.of(header)) sum -= std::to_integer<std::uint64_t>(each);
  return sum + std::uint64_t{' '} * checksum_field.length;
}

bool good_name(std::string_view name) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name[0] != '.' && name[0] != '-' && name.find_first_not_of(letters) == std::string_view::npos;
}

}  // namespace

std::vector<tar_member> read_tar(bytes archive) {
  std::vector<tar_member> members;
  std::size_t at = 0;
  const auto left = [&] { return archive.size() - at; };
  for (;;) {
    if (left() < block) refuse(at, "it ends before its end mark");
    const bytes header = archive.subspan(at, block);
    if (zero(header)) break;
    if (number_in(checksum_field.of(header), at) != sum_of(header)) refuse(at, "the checksum of a header is wrong");
    if (text_of(magic_field.of(header)) != std::string_view("ustar\00000", 8)) refuse(at, "this is not ustar");
    if (text_of(type_field.of(header)) != "0") refuse(at, "this is no file");
    const std::string name(text_in(name_field.of(header)));
    if (!good_name(name) || !zero(prefix_field.of(header))) refuse(at, "an input cannot have this name");
    const std::uint64_t size = number_in(size_field.of(header), at);
    at += block;
    if (size > left()) refuse(at, name + " has " + std::to_string(size) + " bytes, of which some are missing");
    const std::size_t end = static_cast<std::size_t>(size);
    const std::size_t padding = (block - end % block) % block;
    if (padding > left() - end) refuse(at, "it ends within " + name);
    if (!zero(archive.subspan(at + end, padding))) refuse(at, "there is something between " + name + " and the next");
    members.push_back({name, archive.subspan(at, end)});
    at += end + padding;
  }
  if (left() < 2 * block) refuse(at, "half of its end mark is missing");
  if (!zero(archive.subspan(at))) refuse(at, "there is something after its end mark");
  return members;
}

}  // namespace fuzz
