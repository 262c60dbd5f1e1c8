// Parameters in archives and files, and what is refused.

#include <ferry/nn/archive.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <doctest/doctest.h>
#include <cereal/types/vector.hpp>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>

#include "archive_formats.hpp"
#include "expect_error.hpp"
#include "models.hpp"
#include "temporary_directory.hpp"

namespace checkpoint_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;

}  // namespace checkpoint_test
namespace nn = ferry::nn;

namespace checkpoint_test {

using ferry_test::binary;
using ferry_test::json;
using ferry_test::portable;
using ferry_test::xml;

namespace {

template <class Format, class M>
std::string saved(const M& m) {
  std::ostringstream text;
  {
    typename Format::output archive(text);
    nn::save(m, archive);
  }
  return text.str();
}
template <class Format, class M>
void loaded(M& m, const std::string& text) {
  std::istringstream stream(text);
  typename Format::input archive(stream);
  nn::load(m, archive);
}

template <class M>
std::vector<tensor> values_of(const M& m) {
  std::vector<tensor> values;
  for (const tensor& each : nn::parameters(m)) values.push_back(ferry::detach(each).clone());
  return values;
}
bool equal(const std::vector<tensor>& a, const std::vector<tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i != a.size(); ++i) {
    if (!ferry::equal(a[i], b[i])) return false;
  }
  return true;
}

// Expects that load(model) fails and changes nothing.
template <class M, class Load>
void refuse(errc kind, const char* text, M& model, Load load) {
  const std::vector<tensor> before = values_of(model);
  expect_error(kind, text, [&] { load(model); });
  CHECK(equal(values_of(model), before));
}

// A module that is a value of calls.
struct sent_layer {
  nn::linear layer{3, 2};
  template <class Archive>
  void save(Archive& archive) const {
    nn::save(layer, archive);
  }
  template <class Archive>
  void load(Archive& archive) {
    nn::load(layer, archive);
  }
};

std::string contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE_TEMPLATE("parameters come back from archives, into the same tensors", Format, binary, portable, json, xml) {
  const models::residual first;
  models::residual second;
  const std::vector<tensor> tensors = nn::parameters(second);
  REQUIRE(!equal(values_of(first), values_of(second)));
  loaded<Format>(second, saved<Format>(first));
  CHECK(equal(values_of(first), values_of(second)));
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    CHECK(nn::parameters(second)[i].same_as(tensors[i]));
    CHECK((tensors[i].requires_grad() && ferry::is_leaf(tensors[i])));
  }
}

TEST_CASE("an optimizer goes on with values that were loaded, from one archive with them") {
  const auto train = [](nn::linear& layer, ferry::optimizer<ferry::adam>& optimizer) {
    for (int step = 0; step != 3; ++step) {
      optimizer.zero_grad();
      const tensor y = layer(ferry::ones({2, 3}));
      ferry::backward(ferry::sum(y * y));
      optimizer.step();
    }
  };
  nn::linear layer(3, 2);
  ferry::optimizer<ferry::adam> optimizer(nn::parameters(layer), {.lr = 0.1});
  train(layer, optimizer);
  std::stringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    nn::save(layer, archive);
    archive(optimizer);
  }
  nn::linear other(3, 2);
  ferry::optimizer<ferry::adam> of_other(nn::parameters(other));
  {
    cereal::BinaryInputArchive archive(file);
    nn::load(other, archive);
    archive(of_other);
  }
  train(layer, optimizer);
  train(other, of_other);
  CHECK(equal(values_of(layer), values_of(other)));
}

TEST_CASE("parameters travel as a list, and in ferry's own archive") {
  const nn::linear first(3, 2);
  nn::linear second(3, 2);
  const auto message = ferry::serialize(nn::named_parameters(first));
  nn::load(second, ferry::deserialize<std::vector<nn::named_parameter>>(message));
  CHECK(equal(values_of(first), values_of(second)));

  const sent_layer sent;
  const auto received = ferry::deserialize<sent_layer>(ferry::serialize(sent));
  CHECK(equal(values_of(sent.layer), values_of(received.layer)));
}

TEST_CASE("files") {
  const ferry_test::temporary_directory folder;
  const std::string file = folder.file("model.ferry");
  const models::residual first;
  models::residual second;
  nn::save(models::residual(), file);
  nn::save(first, file);  // replaces it
  CHECK(contents(file) == saved<portable>(first));
  nn::load(second, file);
  CHECK(equal(values_of(first), values_of(second)));
  CHECK(std::distance(std::filesystem::directory_iterator(std::filesystem::path(file).parent_path()), {}) == 1);

  refuse(errc::system_failure, "cannot open", second, [&](auto& m) { nn::load(m, folder.file("none")); });
  expect_error(errc::system_failure, "No such file", [&] { nn::save(first, folder.file("none/model")); });
  // A folder is in the way of the name; the draft is removed.
  std::filesystem::create_directories(folder.file("taken/full"));
  expect_error(errc::system_failure, "cannot replace", [&] { nn::save(first, folder.file("taken")); });
  CHECK(std::distance(std::filesystem::directory_iterator(std::filesystem::path(file).parent_path()), {}) == 2);

  const std::string whole = contents(file);
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    std::ofstream(file, std::ios::binary).write(whole.data(), static_cast<std::streamsize>(length));
    refuse(errc::malformed, "model.ferry'", second, [&](auto& m) { nn::load(m, file); });
  }
  std::ofstream(file, std::ios::binary) << whole << "more";
  refuse(errc::malformed, "goes on after the parameters", second, [&](auto& m) { nn::load(m, file); });
  std::ofstream(file, std::ios::binary) << "something else, which is a text";
  refuse(errc::malformed, "does not hold the parameters of a module", second, [&](auto& m) { nn::load(m, file); });
}

TEST_CASE("a file keeps its permissions, a symbolic link stays one, and a pipe gets the bytes") {
  namespace fs = std::filesystem;
  const ferry_test::temporary_directory folder;
  const models::residual model;
  const std::string whole = saved<portable>(model);
  const std::string file = folder.file("run7");
  nn::save(models::residual(), file);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("run7", folder.file("latest"));
  nn::save(model, folder.file("latest"));
  CHECK(fs::is_symlink(folder.file("latest")));
  CHECK(contents(file) == whole);
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  fs::create_symlink("not yet", folder.file("dangling"));
  nn::save(model, folder.file("dangling"));
  CHECK(contents(folder.file("not yet")) == whole);
  fs::create_symlink("loop", folder.file("loop"));
  expect_error(errc::system_failure, "cannot create", [&] { nn::save(model, folder.file("loop")); });
  const std::string pipe = folder.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::string received;
  {
    const std::jthread reader([&] { received = contents(pipe); });
    nn::save(model, pipe);
  }
  CHECK(received == whole);
  CHECK(fs::is_fifo(pipe));
}

struct two_tensors {
  tensor a = ferry::require_grad(ferry::full({2}, 1.));
  tensor b = ferry::require_grad(ferry::full({2}, 2.));
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("a", a);
    visit("b", b);
  }
};

TEST_CASE("values may be a module's own parameters under other names") {
  two_tensors m;
  nn::load(m, {{"a", m.b}, {"b", m.a}});
  CHECK(ferry::equal(ferry::detach(m.a), ferry::full({2}, 2.)));
  CHECK(ferry::equal(ferry::detach(m.b), ferry::full({2}, 1.)));
}

TEST_CASE("values of another module are refused, and the parameter is named") {
  const std::string text = saved<binary>(nn::sequential(nn::linear(3, 2), ferry::relu, nn::linear(2, 1)));
  const auto from_text = [&](auto& m) { loaded<binary>(m, text); };
  nn::sequential larger(nn::linear(3, 2), ferry::relu, nn::linear(2, 1), nn::layer_norm({1}));
  refuse(errc::invalid_argument, "there is no value for parameter '3.weight'", larger, from_text);
  nn::sequential smaller(nn::linear(3, 2), ferry::relu);
  refuse(errc::invalid_argument, "the module has no parameter '2.weight'", smaller, from_text);
  nn::sequential wider(nn::linear(3, 2), ferry::relu, nn::linear(2, 4));
  refuse(errc::bad_shape, "parameter '2.weight' is f32 [4, 2], its value f32 [1, 2]", wider, from_text);
  nn::sequential finer(nn::linear(3, 2), ferry::relu, nn::linear(2, 1, {.dtype = dtype::f64}));
  refuse(errc::bad_dtype, "parameter '2.weight' is f64 [1, 2], its value f32 [1, 2]", finer, from_text);

  nn::linear layer(1, 1, {.bias = false});
  const tensor one = ferry::ones({1, 1});
  using list = std::vector<nn::named_parameter>;
  const auto values = [](list all) { return [=](auto& m) { nn::load(m, all); }; };
  refuse(errc::invalid_argument, "two values for parameter 'weight'", layer,
         values({{"weight", one}, {"weight", one}}));
  refuse(errc::invalid_argument, "the value of parameter 'weight' is undefined", layer, values({{"weight", {}}}));
  refuse(errc::invalid_argument, "there is no value for parameter 'weight'", layer, values({}));
}

TEST_CASE("counts that an archive claims are not believed") {
  nn::linear layer(1, 1);
  const auto refuse_text = [&](errc kind, const char* message, auto write) {
    std::ostringstream text;
    {
      cereal::BinaryOutputArchive archive(text);
      write(archive);
    }
    refuse(kind, message, layer, [&](auto& m) { loaded<binary>(m, text.str()); });
  };
  const std::uint32_t record = ferry::detail::parameters_record;
  refuse_text(errc::malformed, "claims a name of",
              [&](auto& archive) { archive(record, std::uint64_t{1}, std::uint64_t{1} << 60); });
  refuse_text(errc::malformed, "does not hold the parameters", [&](auto& archive) { archive(record + 1); });
  std::ostringstream text;
  {
    cereal::BinaryOutputArchive archive(text);
    archive(record, ~std::uint64_t{0});
  }
  CHECK_THROWS_AS(loaded<binary>(layer, text.str()), cereal::Exception);
}

TEST_CASE("a folder is no file of parameters, and threads that save under one name leave a whole one") {
  const ferry_test::temporary_directory directory;
  nn::linear layer(2, 2);
  expect_error(errc::system_failure, directory.file(""), [&] { nn::load(layer, directory.file("")); });
  const std::string file = directory.file("parameters");
  std::vector<std::thread> all;
  for (int i = 0; i != 4; ++i) {
    all.emplace_back([&] {
      for (int round = 0; round != 50; ++round) nn::save(layer, file);
    });
  }
  for (std::thread& each : all) each.join();
  nn::load(layer, file);
}

}  // namespace checkpoint_test
