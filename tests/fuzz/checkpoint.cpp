// Tensors in files, written by cereal's own archives. Input: u8 which archive (binary, portable binary, or only the text that
// JSON holds elements as), then the file. What cereal itself finds wrong is a cereal::Exception. (JSON as a whole is left out:
// its parser, which cereal includes, does not pass the undefined-behaviour sanitizer.)

#include <sstream>
#include <string>

#include <cereal/archives/binary.hpp>
#include <cereal/archives/portable_binary.hpp>
#include <cereal/external/base64.hpp>

#include <ferry/tensor/factories.hpp>
#include <ferry/wire/tensor_archive.hpp>

#include "targets.hpp"

namespace fuzz {
namespace checkpoint_target {
namespace {

template <class Out>
std::string write(const ferry::tensor& first, const ferry::tensor& second) {
  std::ostringstream file;
  {
    Out archive(file);
    archive(cereal::make_nvp("first", first), cereal::make_nvp("second", second));
  }
  return file.str();
}

template <class In>
void read(const std::string& content, ferry::tensor& first, ferry::tensor& second) {
  std::istringstream file(content);
  In archive(file);
  archive(cereal::make_nvp("first", first), cereal::make_nvp("second", second));
}

bool alike(const ferry::tensor& a, const ferry::tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides() &&
         same(ferry::packed_bytes(a), ferry::packed_bytes(b));
}

template <class In, class Out>
void check(const std::string& content) {
  accepted([&] {
    ferry::tensor first;
    ferry::tensor second;
    try {
      read<In>(content, first, second);
    } catch (const cereal::Exception&) {
      return;
    }
    const std::string again = write<Out>(first, second);
    ferry::tensor first_again;
    ferry::tensor second_again;
    read<In>(again, first_again, second_again);
    require(alike(first, first_again) && alike(second, second_again), "tensors survive being written");
    require(write<Out>(first_again, second_again) == again, "a file is written as it was read");
  });
}

// Base64, with the number of bytes in front.
void check_text(std::string_view content) {
  if (content.empty()) return;
  const auto size = static_cast<unsigned char>(content[0]);
  const std::string_view text = content.substr(1);
  accepted([&] {
    ferry::detail::check_base64_length(text.size(), size);
    std::vector<std::byte> decoded(size);
    ferry::detail::decode_base64(text, decoded);
    const std::string again =
        cereal::base64::encode(reinterpret_cast<const unsigned char*>(decoded.data()), decoded.size());
    require(again.size() == text.size(), "a text is as long as what it was decoded from");
    std::vector<std::byte> twice(size);
    ferry::detail::decode_base64(again, twice);
    require(twice == decoded, "bytes survive being written as text");
  });
}

void run(bytes input) {
  source from(input);
  const auto which = from.number<std::uint8_t>() % 3;
  const std::string content(text_of(from.rest()));
  switch (which) {
    case 0: return check<cereal::BinaryInputArchive, cereal::BinaryOutputArchive>(content);
    case 1: return check<cereal::PortableBinaryInputArchive, cereal::PortableBinaryOutputArchive>(content);
    default: return check_text(content);
  }
}

void seeds(const seed_sink& sink) {
  const auto matrix = ferry::arange(6).view({2, 3}).transpose(0, 1);
  const auto number = ferry::full({}, 5, ferry::dtype::i16);
  sink("binary", seed().number(std::uint8_t{0}).add(write<cereal::BinaryOutputArchive>(matrix, number)));
  sink("portable", seed().number(std::uint8_t{1}).add(write<cereal::PortableBinaryOutputArchive>(matrix, number)));
  sink("text", seed().number(std::uint8_t{2}).number(std::uint8_t{5}).add("aGVsbG8="));
  sink("undefined", seed().number(std::uint8_t{0}).add(write<cereal::BinaryOutputArchive>({}, ferry::zeros({0, 3}))));
}

}  // namespace
}  // namespace checkpoint_target

const target checkpoint{"checkpoint", &checkpoint_target::run, &checkpoint_target::seeds};

}  // namespace fuzz
