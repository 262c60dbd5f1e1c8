#include <ferry/nn/checkpoint.hpp>

#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <ios>
#include <optional>
#include <string>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include <unistd.h>

#include <fmt/format.h>
#include <cereal/archives/portable_binary.hpp>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/base/error.hpp>
#include <ferry/nn/archive.hpp>

#include "../base/signal_mask.hpp"

namespace ferry::inline v0::detail {
namespace {

std::string describe_parameter(const tensor& t) {
  return fmt::format("{} {}", dtype_name(t.dtype()), to_string(t.shape()));
}

[[noreturn]] void refuse_file(const char* what, const std::filesystem::path& file, int number) {
  throw_error(errc::system_failure,
              fmt::format("cannot {} '{}': {}", what, file.string(),
                          number == 0 ? "unknown reason" : std::generic_category().message(number)));
}

// Deletes the unfinished file unless it has got its name.
struct unfinished_file {
  std::filesystem::path path;
  bool kept = false;

  ~unfinished_file() {
    std::error_code ignored;
    if (!kept) std::filesystem::remove(path, ignored);
  }
};

// The file that symbolic links lead to, whether it exists or not.
std::filesystem::path behind_links(std::filesystem::path file) {
  constexpr int most_links = 40;  // as the kernel has it
  std::error_code failure;
  for (int count = 0; std::filesystem::is_symlink(file, failure); ++count) {
    if (count == most_links) refuse_file("create", file, ELOOP);
    const std::filesystem::path next = std::filesystem::read_symlink(file, failure);
    if (failure) refuse_file("create", file, failure.value());
    file = file.parent_path() / next;  // an absolute one replaces all
  }
  return file;
}

void write_parameters(const std::vector<nn::named_parameter>& parameters, const std::filesystem::path& to,
                      const std::optional<std::filesystem::perms>& permissions = {}) {
  errno = 0;
  std::ofstream out(to, std::ios::binary | std::ios::trunc);
  if (!out) refuse_file("create", to, errno);
  if (permissions) {
    std::error_code failure;
    std::filesystem::permissions(to, *permissions, failure);
    if (failure) refuse_file("set the permissions of", to, failure.value());
  }
  try {
    cereal::PortableBinaryOutputArchive archive(out);
    save_parameters(archive, parameters);
  } catch (const cereal::Exception&) {
    refuse_file("write", to, errno);
  }
  out.close();
  if (!out) refuse_file("write", to, errno);
}

void check_value(const std::string& name, const tensor& parameter, const tensor& value) {
  if (!value.defined()) {
    throw_error(errc::invalid_argument, fmt::format("load: the value of parameter '{}' is undefined", name));
  }
  const bool fits = value.shape() == parameter.shape();
  if (fits && value.dtype() == parameter.dtype()) return;
  throw_error(fits ? errc::bad_dtype : errc::bad_shape,
              fmt::format("load: parameter '{}' is {}, its value {}", name, describe_parameter(parameter),
                          describe_parameter(value)));
}

}  // namespace

void need_parameters_record(std::uint32_t record) {
  if (record == parameters_record) return;
  throw_error(errc::malformed,
              "load: the archive does not hold the parameters of a module here, or those of a later ferry");
}

void need_name_length(std::uint64_t length) {
  if (length <= longest_parameter_name) return;
  throw_error(errc::malformed, fmt::format("load: the archive claims a name of {} bytes", length));
}

void assign_parameters(const module_parts& parts, const std::vector<nn::named_parameter>& values) {
  std::unordered_map<std::string_view, const tensor*> by_name;
  for (const nn::named_parameter& each : values) {
    if (by_name.emplace(each.name, &each.value).second) continue;
    throw_error(errc::invalid_argument, fmt::format("load: two values for parameter '{}'", each.name));
  }
  std::vector<std::pair<tensor, tensor>> pairs;
  for (const nn::named_parameter& each : list_named_parameters(parts)) {
    const auto found = by_name.find(each.name);
    if (found == by_name.end()) {
      throw_error(errc::invalid_argument, fmt::format("load: there is no value for parameter '{}'", each.name));
    }
    check_value(each.name, each.value, *found->second);
    pairs.emplace_back(each.value, *found->second);
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    // The first in the order of the list.
    for (const nn::named_parameter& each : values) {
      if (!by_name.contains(each.name)) continue;
      throw_error(errc::invalid_argument, fmt::format("load: the module has no parameter '{}'", each.name));
    }
  }
  // A value may be another parameter, or a part of one, that is written before.
  const no_grad outside;
  std::unordered_set<const std::byte*> written;
  for (const auto& [parameter, value] : pairs) written.insert(parameter.storage().data());
  for (auto& [parameter, value] : pairs) {
    if (!value.same_as(parameter) && written.contains(value.storage().data())) value = value.clone();
  }
  for (const auto& [parameter, value] : pairs) parameter.copy_(value);
}

void write_parameter_file(const std::vector<nn::named_parameter>& parameters, const std::filesystem::path& file) {
  for (const nn::named_parameter& each : parameters) {
    if (each.name.size() <= longest_parameter_name) continue;
    throw_error(errc::invalid_argument, fmt::format("save: the name of a parameter has {} bytes, more than {}",
                                                    each.name.size(), longest_parameter_name));
  }
  namespace fs = std::filesystem;
  const writes_fail_by_error no_signals;
  std::error_code failure;
  const fs::file_status old = fs::status(file, failure);
  if (fs::exists(old) && !fs::is_regular_file(old) && !fs::is_directory(old)) {  // a pipe, a device
    write_parameters(parameters, file);
    return;
  }
  const fs::path target = behind_links(file);
  unfinished_file temporary{target};
  static std::atomic<unsigned> saves{0};  // threads that save under one name write files of their own
  temporary.path += fmt::format(".{}.{}.part", ::getpid(), saves.fetch_add(1));
  write_parameters(parameters, temporary.path,
                   fs::is_regular_file(old) ? std::optional(old.permissions()) : std::nullopt);
  fs::rename(temporary.path, target, failure);
  if (failure) refuse_file("replace", file, failure.value());
  temporary.kept = true;
}

std::vector<nn::named_parameter> read_parameter_file(const std::filesystem::path& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse_file("open", file, errno);
  try {
    cereal::PortableBinaryInputArchive archive(in);
    std::vector<nn::named_parameter> loaded = load_parameters(archive);
    if (in.peek() != std::ifstream::traits_type::eof()) {
      throw_error(errc::malformed, "it goes on after the parameters");
    }
    return loaded;
  } catch (const std::ios_base::failure&) {  // a folder, for example
    refuse_file("read", file, errno);
  } catch (const cereal::Exception& failure) {
    throw_error(errc::malformed,
                fmt::format("'{}' is no complete file of parameters: {}", file.string(), failure.what()));
  } catch (const error& failure) {
    throw_error(failure.kind(), fmt::format("'{}': {}", file.string(), failure.message()));
  }
}

}  // namespace ferry::inline v0::detail
