#pragma once

// The parameters of a module in files, and from lists.

#include <filesystem>
#include <vector>

#include <ferry/nn/module.hpp>

namespace ferry::inline v0 {
namespace detail {

/// Throws as nn::load() says, and then has written nothing.
void assign_parameters(const module_parts& parts, const std::vector<nn::named_parameter>& values);
void write_parameter_file(const std::vector<nn::named_parameter>& parameters, const std::filesystem::path& file);
std::vector<nn::named_parameter> read_parameter_file(const std::filesystem::path& file);

}  // namespace detail

namespace nn {

/// Writes names and values into a file, which replaces an older one only when it is complete, and has its permissions. A symbolic link
/// remains one; a pipe or a device is written to directly. Tensors on devices are saved through the
/// CPU, and the host waits. The file is the same on all platforms; it is what save() to a cereal::PortableBinaryOutputArchive writes
/// (<ferry/nn/archive.hpp>). Throws errc::system_failure with the path and the reason.
template <class M>
void save(const M& m, const std::filesystem::path& file) {
  detail::write_parameter_file(named_parameters(m), file);
}

/// Writes the values into the parameters of these names, in place and outside of the graph: they are the same tensors afterwards, so
/// that optimizers and copies of the module see the values; they stay on their devices, and gradients stay as they are.
///
/// Throws errc::invalid_argument for a parameter without a value, a value without a parameter, and two values of one name,
/// errc::bad_shape and errc::bad_dtype for a value that does not look like its parameter; the text names it. Nothing has changed then.
template <class M>
void load(M& m, const std::vector<named_parameter>& values) {
  detail::assign_parameters(detail::module_parts_of(m), values);
}
/// From a file. Throws also errc::system_failure for one that cannot be read, and errc::malformed for one that save() has not written,
/// or not to its end. The file is untrusted: memory is allocated for the data that is there.
template <class M>
void load(M& m, const std::filesystem::path& file) {
  detail::assign_parameters(detail::module_parts_of(m), detail::read_parameter_file(file));
}

}  // namespace nn
}  // namespace ferry::inline v0
