#include <ferry/nn/embedding.hpp>

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/nn/init.hpp>
#include <ferry/ops/comparison.hpp>

#include "parameters.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

tensor make_table(std::string_view made, std::int64_t count, std::int64_t width, dtype type, device where,
                  generator& source) {
  need_size(made, "the number of rows", count);
  need_size(made, "their width", width);
  tensor table = make_parameter(made, {count, width}, type, where);
  nn::normal_(table, 0, 1, source);
  return table;
}

}  // namespace
}  // namespace detail

namespace nn {

embedding::embedding(std::int64_t count, std::int64_t width, const embedding_options& with, generator& source)
    : weight(detail::make_table("embedding", count, width, with.dtype, with.device, source)),
      padding(with.padding),
      sparse_gradient(with.sparse_gradient) {
  if (!padding) return;
  if (*padding < -count || *padding >= count) {
    throw_error(errc::invalid_argument,
                fmt::format("embedding: the padding is row {} of a table of {} rows", *padding, count));
  }
  if (*padding < 0) *padding += count;
  const no_grad outside;
  weight.select(0, *padding).fill_(0);
}

tensor embedding::operator()(const tensor& indices) const {
  tensor rows = ferry::embedding(weight, indices, {.sparse_gradient = sparse_gradient});
  if (!padding) return rows;
  // The rows as they are, without the way back.
  return where(eq(indices, *padding).unsqueeze(-1), detach(rows), rows);
}

embedding_bag::embedding_bag(std::int64_t count, std::int64_t width, const embedding_bag_options& with,
                             generator& source)
    : weight(detail::make_table("embedding_bag", count, width, with.dtype, with.device, source)),
      mode(with.mode),
      sparse_gradient(with.sparse_gradient) {}

tensor embedding_bag::operator()(const tensor& indices) const {
  return ferry::embedding_bag(weight, indices, mode, {.sparse_gradient = sparse_gradient});
}

tensor embedding_bag::operator()(const tensor& indices, const tensor& offsets) const {
  return ferry::embedding_bag(weight, indices, offsets, mode, {.sparse_gradient = sparse_gradient});
}

}  // namespace nn
}  // namespace ferry::inline v0
