#include <ferry/wire/archive.hpp>

#include <unordered_map>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/tensor/operation.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::uint32_t new_object = 0x8000'0000U;  // cereal's marker for a new object that follows
constexpr std::uint32_t no_tensor = 0xffff'ffffU;
constexpr std::size_t searched_tensors = 32;  // up to here a linear search is fast enough

}  // namespace

struct saved_pointers {
  struct address_hash {
    std::size_t operator()(const std::pair<const void*, const std::type_info*>& key) const noexcept {
      return std::hash<const void*>{}(key.first);
    }
  };
  struct same_object {
    bool operator()(const std::pair<const void*, const std::type_info*>& a,
                    const std::pair<const void*, const std::type_info*>& b) const noexcept {
      return a.first == b.first && *a.second == *b.second;
    }
  };
  std::unordered_map<std::pair<const void*, const std::type_info*>, std::uint32_t, address_hash, same_object> numbers;
  std::vector<std::shared_ptr<const void>> alive;  // keeps addresses from being reused during one encoding
};

struct saved_tensors {
  std::unordered_multimap<const void*, std::uint32_t> by_data;
};

struct loaded_pointers {
  struct object {
    std::shared_ptr<void> pointer;
    const std::type_info* type;
    bool usable;
  };
  std::vector<object> objects;  // number n is at n - 1
  std::vector<std::uint32_t>
      unfinished;  // for each open pointer to a type that is constructed late; 0: none registered
};

}  // namespace detail

wire_output_archive::wire_output_archive(byte_buffer& bytes, std::vector<tensor>& tensors,
                                         detail::handle_writer* handles, std::uint32_t max_depth)
    : cereal::OutputArchive<wire_output_archive, cereal::AllowEmptyClassElision>(this),
      bytes_(bytes),
      tensors_(tensors),
      handles_(handles),
      max_depth_(max_depth) {}

wire_output_archive::~wire_output_archive() noexcept = default;

void wire_output_archive::write_tensor(const tensor& value) {
  if (!value.defined()) return write_number(detail::no_tensor);
  if (tensors_.size() <= detail::searched_tensors) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].same_as(value)) return write_number(static_cast<std::uint32_t>(i));
    }
  } else {
    if (!many_tensors_) {
      many_tensors_ = std::make_unique<detail::saved_tensors>();
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        many_tensors_->by_data.emplace(tensors_[i].data(), static_cast<std::uint32_t>(i));
      }
    }
    const auto [first, last] = many_tensors_->by_data.equal_range(value.data());
    for (auto at = first; at != last; ++at) {
      if (tensors_[at->second].same_as(value)) return write_number(at->second);
    }
    many_tensors_->by_data.emplace(value.data(), static_cast<std::uint32_t>(tensors_.size()));
  }
  write_number(static_cast<std::uint32_t>(tensors_.size()));
  tensors_.push_back(value);
}

std::uint32_t wire_output_archive::register_pointer(std::shared_ptr<const void> pointer, const std::type_info& type) {
  if (!pointers_) pointers_ = std::make_unique<detail::saved_pointers>();
  const auto number = static_cast<std::uint32_t>(pointers_->numbers.size() + 1);
  if (number >= detail::new_object)
    throw_error(errc::not_serialisable, "more than 2^31 objects behind shared pointers");
  const auto [at, fresh] = pointers_->numbers.try_emplace({pointer.get(), &type}, number);
  if (!fresh) return at->second;
  pointers_->alive.push_back(std::move(pointer));
  return number | detail::new_object;
}

void wire_output_archive::too_deep() const {
  throw_error(errc::limit_exceeded, "the value to encode is nested more than " + std::to_string(max_depth_) +
                                        " levels deep (wire_limits::max_depth)");
}

wire_input_archive::wire_input_archive(std::span<const std::byte> bytes, std::span<const tensor> tensors,
                                       const wire_limits& limits, const detail::handle_reader* handles)
    : cereal::InputArchive<wire_input_archive, cereal::AllowEmptyClassElision>(this),
      begin_(bytes.data()),
      next_(bytes.data()),
      end_(bytes.data() + bytes.size()),
      budget_(limits.decoded_budget(bytes.size())),
      max_depth_(limits.max_depth),
      tensors_(tensors),
      handles_(handles) {}

wire_input_archive::~wire_input_archive() noexcept = default;

tensor wire_input_archive::read_tensor() {
  const auto index = read_number<std::uint32_t>();
  if (index == detail::no_tensor) return {};
  if (index > tensors_used_ || index >= tensors_.size()) {
    throw_error(errc::malformed, where() + "tensor " + std::to_string(index) + " is referred to out of order; " +
                                     std::to_string(tensors_used_) + " of " + std::to_string(tensors_.size()) +
                                     " were used before");
  }
  if (index == tensors_used_) ++tensors_used_;
  return tensors_[index];
}

tensor wire_input_archive::read_unshared_tensor() {
  const std::size_t used_before = tensors_used_;
  tensor value = read_tensor();
  if (!value.defined() || tensors_used_ != used_before) return value;
  const detail::unreported part_of_decoding;
  tensor copy = value.clone();
  copy.set_slot(value.slot());
  return copy;
}

void wire_input_archive::check_bools(const std::byte* data, std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] > std::byte{1}) bad_bool(static_cast<std::uint8_t>(data[i]));
  }
}

void wire_input_archive::enter_shared_pointer(const std::type_info& type, bool constructed) {
  pointee_ = true;
  expected_ = &type;
  constructed_ = constructed;
  if (constructed) return;
  if (!pointers_) pointers_ = std::make_unique<detail::loaded_pointers>();
  pointers_->unfinished.push_back(0);
}

void wire_input_archive::leave_shared_pointer(bool constructed) noexcept {
  pointee_ = false;
  if (constructed) return;
  const std::uint32_t number = pointers_->unfinished.back();
  pointers_->unfinished.pop_back();
  if (number != 0) pointers_->objects[number - 1].usable = true;
}

void wire_input_archive::registerSharedPointer(std::uint32_t id, const std::shared_ptr<void>& pointer) {
  if (!pointers_) pointers_ = std::make_unique<detail::loaded_pointers>();
  const std::uint32_t number = id & ~detail::new_object;
  if (number != pointers_->objects.size() + 1 || expected_ == nullptr) {
    throw_error(errc::malformed,
                where() + "object " + std::to_string(number) + " behind a shared pointer is out of order");
  }
  pointers_->objects.push_back({pointer, expected_, constructed_});
  if (!constructed_) pointers_->unfinished.back() = number;
}

std::shared_ptr<void> wire_input_archive::getSharedPointer(std::uint32_t id) {
  if (id == 0) return nullptr;
  if (!pointers_ || id > pointers_->objects.size()) {
    throw_error(errc::malformed,
                where() + "a shared pointer refers to object " + std::to_string(id) + ", which has not been read yet");
  }
  const auto& object = pointers_->objects[id - 1];
  if (expected_ == nullptr || *object.type != *expected_) {
    throw_error(errc::malformed, where() + "a shared pointer to " +
                                     (expected_ ? detail::demangled_type(*expected_) : std::string("an unknown type")) +
                                     " refers to an object of type " + detail::demangled_type(*object.type));
  }
  if (!object.usable) {
    throw_error(errc::malformed, where() + "a shared pointer refers to an object of type " +
                                     detail::demangled_type(*object.type) +
                                     " whose load_and_construct is still reading it");
  }
  return object.pointer;
}

std::string wire_input_archive::where() const {
  return "byte " + std::to_string(static_cast<std::uint64_t>(next_ - begin_)) + " of " +
         std::to_string(static_cast<std::uint64_t>(end_ - begin_)) + ": ";
}

void wire_input_archive::ran_out(std::size_t wanted) const {
  throw_error(errc::truncated, where() + std::to_string(wanted) + " more bytes are needed, " + std::to_string(left()) +
                                   " are left; were the types of both sides the same?");
}

void wire_input_archive::bad_bool(std::uint8_t value) const {
  throw_error(errc::malformed, where() + "a bool is " + std::to_string(value) + ", not 0 or 1");
}

void wire_input_archive::count_beyond_end(std::uint64_t count, std::size_t bytes) const {
  throw_error(errc::truncated, where() + "a count of " + std::to_string(count) + " elements of at least " +
                                   std::to_string(bytes) + " bytes each, with " + std::to_string(left()) +
                                   " bytes left");
}

void wire_input_archive::over_budget(std::uint64_t count, std::uint64_t bytes) const {
  throw_error(errc::limit_exceeded, where() + std::to_string(count) + " elements of " + std::to_string(bytes) +
                                        " bytes in memory exceed what is left of the budget, " +
                                        std::to_string(budget_) +
                                        " bytes (wire_limits::max_decoded_bytes, max_expansion)");
}

void wire_input_archive::too_deep() const {
  throw_error(errc::limit_exceeded, where() + "values are nested more than " + std::to_string(max_depth_) +
                                        " levels deep (wire_limits::max_depth)");
}

void wire_input_archive::left_over() const {
  throw_error(errc::malformed, where() + std::to_string(left()) +
                                   " bytes follow the last value; were the types of both sides the same?");
}

void wire_input_archive::tensors_left_over() const {
  throw_error(errc::malformed, std::to_string(tensors_.size() - tensors_used_) + " of " +
                                   std::to_string(tensors_.size()) +
                                   " tensors belong to no value; were the types of both sides the same?");
}

namespace detail {

void throw_null_text() { throw_error(errc::invalid_argument, "a null pointer was given for a text"); }
void rethrow_encode_error(const cereal::Exception& problem) { throw_error(errc::not_serialisable, problem.what()); }
void rethrow_decode_error(const cereal::Exception& problem) { throw_error(errc::malformed, problem.what()); }

}  // namespace detail
}  // namespace ferry::inline v0
