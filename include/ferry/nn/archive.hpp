#pragma once

// The parameters of a module in archives: ferry's own, and the others of cereal.
//
//   cereal::BinaryOutputArchive archive(file);
//   ferry::nn::save(model, archive);
//   archive(optimizer);

#include <ferry/config.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <cereal/cereal.hpp>
#include <cereal/types/string.hpp>

#include <ferry/nn/checkpoint.hpp>
#include <ferry/nn/module.hpp>
#include <ferry/wire/archive.hpp>
#include <ferry/wire/standard_types.hpp>
#include <ferry/wire/tensor_archive.hpp>

namespace ferry::inline v0 {
namespace detail {

/// The number that begins the record of a module's parameters.
inline constexpr std::uint32_t parameters_record = 0x31506e66;
/// Of a name in an archive whose counts are not to be trusted.
inline constexpr std::uint64_t longest_parameter_name = 4096;

// They throw errc::malformed.
void need_parameters_record(std::uint32_t record);
void need_name_length(std::uint64_t length);

/// Binary archives take the length of a string as it is claimed, so that it is checked here.
struct archived_name {
  std::string value;

  template <class Archive>
  void save(Archive& archive) const {
    archive(static_cast<std::uint64_t>(value.size()), cereal::binary_data(value.data(), value.size()));
  }
  template <class Archive>
  void load(Archive& archive) {
    std::uint64_t length = 0;
    archive(length);
    need_name_length(length);
    value.resize(static_cast<std::size_t>(length));
    archive(cereal::binary_data(value.data(), value.size()));
  }
};

template <class Archive>
void save_parameters(Archive& archive, const std::vector<nn::named_parameter>& parameters) {
  archive(parameters_record, static_cast<std::uint64_t>(parameters.size()));
  for (const nn::named_parameter& each : parameters) {
    const tensor here = each.value.to(device{});
    if constexpr (text_output_archive<Archive> || std::same_as<Archive, wire_output_archive>) {
      archive(each.name, here);
    } else {
      archive(archived_name{each.name}, here);
    }
  }
}

template <class Archive>
std::vector<nn::named_parameter> load_parameters(Archive& archive) {
  std::uint32_t record = 0;
  std::uint64_t count = 0;
  archive(record);
  need_parameters_record(record);
  archive(count);
  std::vector<nn::named_parameter> loaded;  // grows by what is there, not by what is claimed
  for (std::uint64_t i = 0; i != count; ++i) {
    nn::named_parameter each;
    if constexpr (text_input_archive<Archive> || std::same_as<Archive, wire_input_archive>) {
      archive(each.name, each.value);
    } else {
      archived_name name;
      archive(name, each.value);
      each.name = std::move(name.value);
    }
    loaded.push_back(std::move(each));
  }
  return loaded;
}

}  // namespace detail

namespace nn {

/// Writes names and values. Tensors on devices are saved through the CPU, and the host waits.
template <class M, std::derived_from<cereal::detail::OutputArchiveBase> Archive>
void save(const M& m, Archive& archive) {
  detail::save_parameters(archive, named_parameters(m));
}
/// As load() of a list of values, and with the same errors. Throws also errc::malformed for what save() has not written, and what the
/// archive throws; then nothing has changed. cereal's XML archive crashes where an element is missing: read XML from sources that you
/// trust.
template <class M, std::derived_from<cereal::detail::InputArchiveBase> Archive>
void load(M& m, Archive& archive) {
  detail::assign_parameters(detail::module_parts_of(m), detail::load_parameters(archive));
}

}  // namespace nn
}  // namespace ferry::inline v0
