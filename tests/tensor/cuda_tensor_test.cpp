// Tensors on CUDA devices, on the fake CUDA runtime.

#include <array>
#include <atomic>
#include <complex>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/dlpack.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/tensor.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "processes.hpp"

namespace cuda_tensor_test {

using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::errc;
using ferry::stream;
using ferry::tensor;

namespace {

device gpu(int index) { return {device_kind::cuda, index}; }
constexpr device host{};

struct newest_first {
  newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::newest_first); }
  ~newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::random); }
};

// Captures the warnings about blocks that cannot be released.
struct quiet_log {
  quiet_log() { ferry::set_log_level(ferry::log_level::off); }
  ~quiet_log() { ferry::set_log_level(former); }
  ferry::log_level former = ferry::get_log_level();
};

// Page-locked memory is allocated once, and CUDA may block for that: no later operation does.
void warm_up(device where, std::int64_t bytes = 1 << 20) { (void)ferry::zeros({bytes}, dtype::u8).to(where).to(host); }

constexpr std::array all_dtypes{dtype::bool_, dtype::u8,   dtype::i8,      dtype::i16,    dtype::i32,
                                dtype::i64,   dtype::f16,  dtype::bf16,    dtype::f32,    dtype::f64,
                                dtype::c64,   dtype::c128, dtype::f8_e4m3, dtype::f8_e5m2};

}  // namespace

TEST_CASE("tensors are made and filled on a device") {
  CHECK(ferry::empty({2, 3}, dtype::f32, gpu(1)).device() == gpu(1));
  CHECK(ferry::equal(ferry::zeros({2, 3}, dtype::f64, gpu(1)).to(host), ferry::zeros({2, 3}, dtype::f64)));
  CHECK(ferry::equal(ferry::ones({5}, dtype::i16, gpu(1)).to(host), ferry::ones({5}, dtype::i16)));
  CHECK(ferry::equal(ferry::full({2, 2}, 2.5, dtype::f32, gpu(1)).to(host), ferry::full({2, 2}, 2.5)));
  CHECK(ferry::equal(ferry::full({3}, std::complex(1., -2.), dtype::c128, gpu(2)).to(host),
                     ferry::full({3}, std::complex(1., -2.), dtype::c128)));
  CHECK(ferry::equal(ferry::arange(0, 10, 3, dtype::i64, gpu(1)).to(host), ferry::arange(0, 10, 3)));
  CHECK(ferry::zeros_like(ferry::empty({4}, dtype::f32, gpu(3))).device() == gpu(3));
  CHECK(ferry::equal(ferry::ones_like(ferry::empty({4}, dtype::f32, gpu(3))).to(host), ferry::ones({4})));
  CHECK(ferry::empty({0, 3}, dtype::f32, gpu(1)).to(host).shape() == ferry::dims{0, 3});
  const tensor scalar = ferry::full({}, 7, dtype::i32, gpu(1));
  CHECK(scalar.to(host).item<int>() == 7);
  expect_error(errc::bad_device, "there is no device cuda:8", [] { (void)ferry::zeros({1}, dtype::f32, gpu(8)); });
}

TEST_CASE("elements of every type go to a device and back, at any size") {
  for (const dtype type : all_dtypes) {
    const tensor t = ferry::arange(0, 50).to(type);
    const tensor there = t.to(gpu(1));
    CHECK(there.device() == gpu(1));
    CHECK(there.dtype() == type);
    CHECK(ferry::equal(there.to(host), t));
  }
  const tensor large = ferry::arange(0, std::int64_t{9} << 17);  // 9 MiB: more than one piece
  CHECK(ferry::equal(large.to(gpu(1)).to(host), large));
  const tensor here = large.to(host);
  CHECK(here.same_as(large));
}

TEST_CASE("views of a device tensor match views of a CPU tensor") {
  const tensor cpu = ferry::arange(0, 5 * 6 * 7).view({5, 6, 7});
  const tensor there = cpu.to(gpu(2));
  const std::vector<std::function<tensor(const tensor&)>> views{
      [](const tensor& t) { return t.transpose(0, 2); },
      [](const tensor& t) { return t.slice(1, 1, 6, 2); },
      [](const tensor& t) { return t.select(0, 3); },
      [](const tensor& t) {
        return t.permute({2, 0, 1}).slice(0, 0, 7, 3).transpose(1, 2);
      },
      [](const tensor& t) {
        return t.select(2, 4).unsqueeze(0).expand({3, 5, 6});
      },
      [](const tensor& t) { return t.narrow(0, 1, 2).flatten(); },
      [](const tensor& t) {
        return t.transpose(0, 1).reshape({30, 7});
      },
      [](const tensor& t) {
        return t.as_strided({4, 4}, {1, 5}, 3);
      },
  };
  for (std::size_t i = 0; i != views.size(); ++i) {
    CAPTURE(i);
    const tensor expected = views[i](cpu);
    const tensor view = views[i](there);
    CHECK(view.device() == gpu(2));
    CHECK(ferry::equal(view.to(host), expected));
    CHECK(ferry::equal(view.contiguous().to(host), expected));
    CHECK(ferry::equal(view.clone().to(host), expected));
    CHECK(ferry::equal(view.to(dtype::f32).to(host), expected.to(dtype::f32)));
    const tensor packed = ferry::pack(view);
    CHECK(packed.strides() == ferry::pack(expected).strides());
    CHECK(ferry::equal(packed.to(host), expected));
    CHECK(ferry::equal(view.to(gpu(3)).to(host), expected));
    CHECK(ferry::equal(view.to(gpu(7)).to(host), expected));  // no peer access between the two
  }
}

TEST_CASE("elements are converted on a device as on the CPU") {
  const tensor numbers = ferry::tensor_of({-300., -2.5, -1., 0., 0.4, 1., 1.5, 2.75, 100., 250., 300., 70000., 1e10});
  for (const dtype from : all_dtypes) {
    const tensor cpu = numbers.to(from);
    const tensor there = cpu.to(gpu(1));
    for (const dtype to : all_dtypes) {
      CAPTURE(ferry::dtype_name(from));
      CAPTURE(ferry::dtype_name(to));
      CHECK(ferry::allclose(there.to(to).to(host), cpu.to(to), 0, 0, true));
    }
  }
}

TEST_CASE("copy_ goes from any device to any view, and converts") {
  const tensor numbers = ferry::arange(0, 24).view({4, 6});
  for (const device from : {host, gpu(0), gpu(1), gpu(6)}) {
    for (const device to : {host, gpu(0), gpu(2), gpu(6)}) {
      for (const dtype type : {dtype::i64, dtype::f32}) {
        CAPTURE(to_string(from));
        CAPTURE(to_string(to));
        const tensor source = numbers.to(from);
        const tensor target = ferry::full({6, 8}, -1, type, to);
        const tensor part = target.transpose(0, 1).slice(0, 0, 8, 2);  // [4, 6], neither dense nor in order
        part.copy_(source);
        const tensor expected = ferry::full({6, 8}, -1, type);
        expected.transpose(0, 1).slice(0, 0, 8, 2).copy_(numbers);
        CHECK(ferry::equal(target.to(host), expected));
        // One row to all of them, and from a view.
        target.copy_(source.select(1, 2).slice(0, 0, 1).expand({6, 8}));
        CHECK(ferry::equal(target.to(host), ferry::full({6, 8}, 2, type)));
      }
    }
  }
  const tensor t = ferry::arange(0, 10).to(gpu(1));
  t.slice(0, 1).copy_(t.slice(0, 0, 9));  // they overlap
  CHECK(ferry::equal(t.to(host), ferry::tensor_of<std::int64_t>({0, 0, 1, 2, 3, 4, 5, 6, 7, 8})));
}

TEST_CASE("a tensor of a device is filled, whole or in part") {
  const tensor t = ferry::zeros({4, 5}, dtype::f32, gpu(1));
  t.fill_(1.5);
  t.select(1, 2).fill_(-3);
  const tensor expected = ferry::full({4, 5}, 1.5);
  expected.select(1, 2).fill_(-3);
  CHECK(ferry::equal(t.to(host), expected));
  CHECK(t.version() == 2);
}

TEST_CASE("the host cannot access device elements by mistake") {
  const tensor t = ferry::ones({2}, dtype::f32, gpu(1));
  expect_error(errc::bad_device, "a tensor on cuda:1 cannot be reached from the host: move it with to(ferry::device{})",
               [&] { (void)t.at<float>(0); });
  expect_error(errc::bad_device, "item works on CPU tensors; this one is on cuda:1: move it with to(ferry::device{})",
               [&] { (void)t.select(0, 0).item<float>(); });
  expect_error(errc::bad_device, "equal works on CPU tensors", [&] { (void)ferry::equal(t, t); });
  expect_error(errc::bad_device, "topk works on CPU tensors", [&] { (void)ferry::topk(t, 1); });
  CHECK(ferry::to_string(t).find("cuda:1") != std::string::npos);
  CHECK(t.data<float>() != nullptr);  // for kernels
}

TEST_CASE("device operations do not block the host until it reads elements") {
  for (const int index : {1, 2, 5}) warm_up(gpu(index));
  // Page-locked memory that is needed for the first time is no wait for work.
  const auto waits = [] { return fake_cuda::host_synchronizations() - fake_cuda::calls(fake_cuda::call::host_alloc); };
  const auto before = waits();
  std::vector<tensor> results;
  {
    const fake_cuda::pause pause;  // a blocked thread would wait for a minute and fail
    const tensor source = ferry::full({100}, 2.);
    const tensor a = source.to(gpu(1));
    source.fill_(99.);  // it has been read
    const tensor b = ferry::zeros({100}, dtype::f32, gpu(1));
    b.slice(0, 0, 50).copy_(a.slice(0, 0, 50));
    ferry::add_(b, a.to(dtype::f64).to(dtype::f32), 3);
    const tensor c = (b * 2).to(gpu(2));
    results.push_back(c + c.clone());
    results.push_back(results.back().to(gpu(5)));
    results.push_back(ferry::arange(0, 100, 1, dtype::f32, gpu(2)));
  }
  CHECK(waits() == before);
  tensor expected = ferry::full({100}, 24.);
  expected.slice(0, 0, 50).fill_(32.);
  CHECK(ferry::equal(results[0].to(host), expected));
  CHECK(waits() == before + 1);
  CHECK(ferry::equal(results[1].to(host), expected));
  CHECK(ferry::equal(results[2].to(host), ferry::arange(0, 100).to(dtype::f32)));
}

TEST_CASE("copies between devices keep the order of both current streams") {
  const newest_first schedule;
  for (const int other : {1, 6}) {
    warm_up(gpu(0));
    const ferry::stream_guard here(ferry::pool_stream(gpu(0)));
    const ferry::stream_guard there(ferry::pool_stream(gpu(other)));
    const tensor source = ferry::zeros({1000}, dtype::f32, gpu(0));
    const tensor target = ferry::zeros({1000}, dtype::f32, gpu(other));
    const tensor seen = ferry::zeros({1000}, dtype::f32, gpu(other));
    fake_cuda::drain();
    {
      const fake_cuda::pause pause;
      source.fill_(1.);
      target.copy_(source);  // after the fill
      source.fill_(2.);      // after the copy has read it
      seen.copy_(target);    // after the copy has written it
      target.fill_(3.);
      target.copy_(source);  // after the fill of the target
    }
    CHECK(ferry::equal(seen.to(host), ferry::full({1000}, 1.)));
    CHECK(ferry::equal(target.to(host), ferry::full({1000}, 2.)));
  }
}

TEST_CASE("memory of a tensor that another stream reads is not reused before") {
  const newest_first schedule;
  const stream a = ferry::pool_stream(gpu(1));
  const stream b = ferry::pool_stream(gpu(1));
  const std::vector<std::function<tensor(const tensor&)>> reads{
      [](const tensor& t) { return t.clone(); },  // bytes
      [](const tensor& t) {
        return t.view({10, 100}).transpose(0, 1).clone();
      },                                                 // a kernel
      [](const tensor& t) { return t.to(dtype::f64); },  // another one
      [](const tensor& t) { return t + 0.F; },           // and another
      [](const tensor& t) { return t.to(gpu(0)); },      // another device
  };
  for (std::size_t i = 0; i != reads.size(); ++i) {
    CAPTURE(i);
    const ferry::stream_guard guard(a);
    tensor t = ferry::full({1000}, 5., dtype::f32, gpu(1));
    fake_cuda::drain();
    tensor result;
    {
      const fake_cuda::pause pause;
      {
        const ferry::stream_guard reader(b);
        result = reads[i](t);
      }
      t = tensor();
      for (int n = 0; n != 4; ++n) (void)ferry::full({1000}, 9., dtype::f32, gpu(1));
    }
    fake_cuda::drain();
    CHECK(ferry::equal(result.flatten().to(dtype::f32).to(host), ferry::full({1000}, 5.)));
  }
}

TEST_CASE("memory into which another device still copies is not reused, even if the copy failed half-way") {
  const newest_first schedule;
  const ferry::stream_guard here(ferry::pool_stream(gpu(0)));
  const ferry::stream_guard there(ferry::pool_stream(gpu(1)));
  const tensor source = ferry::full({1000}, 5., dtype::f32, gpu(0));
  tensor target = ferry::zeros({1000}, dtype::f32, gpu(1));
  fake_cuda::drain();
  tensor next;
  {
    const fake_cuda::pause pause;
    fake_cuda::fail(fake_cuda::call::stream_wait_event, 719,
                    2);  // the copy is queued, the target's stream does not wait
    CHECK_THROWS_AS(target.copy_(source), ferry::error);
    target = tensor();
    next = ferry::full({1000}, 9., dtype::f32, gpu(1));
  }
  fake_cuda::drain();
  CHECK(ferry::equal(next.to(host), ferry::full({1000}, 9.)));
}

TEST_CASE("tensors of a device are freed in the order of their stream") {
  const stream on = ferry::pool_stream(gpu(4));
  const ferry::stream_guard guard(on);
  void* data = nullptr;
  {
    const tensor t = ferry::zeros({1000}, dtype::f32, gpu(4));
    data = t.data();
    CHECK(ferry::get_device_memory_stats(gpu(4)).used_bytes == 4000);
  }
  CHECK(ferry::get_device_memory_stats(gpu(4)).used_bytes == 0);
  CHECK(ferry::empty({1000}, dtype::f32, gpu(4)).data() == data);
}

TEST_CASE("a read-only DLPack tensor goes back to its owner once the device has copied it") {
  tensor source = ferry::full({4}, 5., dtype::f32, gpu(0));
  fake_cuda::drain();
  static std::atomic<int> given_back;
  given_back = 0;
  std::array<std::int64_t, 1> shape{4};
  ferry::dlpack::managed_tensor_versioned managed{};
  managed.version = {1, 0};
  managed.flags = ferry::dlpack::flag_read_only;
  managed.dl_tensor.data = source.data();
  managed.dl_tensor.device = {2, 0};
  managed.dl_tensor.ndim = 1;
  managed.dl_tensor.dtype = {2, 32, 1};
  managed.dl_tensor.shape = shape.data();
  managed.deleter = [](ferry::dlpack::managed_tensor_versioned*) { ++given_back; };
  tensor copy;
  {
    const fake_cuda::pause nothing_runs;
    copy = ferry::from_dlpack(&managed, ferry::dlpack::if_read_only::copy);
    CHECK(given_back == 0);
  }
  fake_cuda::drain();
  while (given_back == 0) (void)ferry::get_device_memory_stats(gpu(0));
  CHECK(ferry::equal(copy.to(host), ferry::full({4}, 5.)));
  CHECK(given_back == 1);
}

TEST_CASE("a DLPack export is ordered on the consumer's stream") {
  const newest_first schedule;
  const stream mine = ferry::pool_stream(gpu(1));
  const stream theirs = ferry::pool_stream(gpu(1));
  const ferry::stream_guard guard(mine);
  tensor t = ferry::zeros({1000}, dtype::f32, gpu(1));
  fake_cuda::drain();
  tensor seen;
  {
    const fake_cuda::pause pause;
    t.fill_(4.);
    auto managed = ferry::to_dlpack(t, theirs);
    CHECK(managed->dl_tensor.device.kind == 2);
    CHECK(managed->dl_tensor.device.index == 1);
    t = tensor();
    const ferry::stream_guard consumer(theirs);
    const tensor taken = ferry::from_dlpack(std::move(managed));
    CHECK(taken.device() == gpu(1));
    seen = taken.clone();
  }
  fake_cuda::drain();
  CHECK(ferry::equal(seen.to(host), ferry::full({1000}, 4.)));

  // The consumer's host code is done with the tensor before its stream is.
  t = ferry::full({1000}, 4., dtype::f32, gpu(1));
  fake_cuda::drain();
  {
    const fake_cuda::pause pause;
    {
      auto managed = ferry::to_dlpack(t, theirs);
      t = tensor();
      const ferry::stream_guard consumer(theirs);
      seen = ferry::from_dlpack(std::move(managed)).clone();
    }
    for (int n = 0; n != 4; ++n) (void)ferry::full({1000}, 9., dtype::f32, gpu(1));
  }
  fake_cuda::drain();
  CHECK(ferry::equal(seen.to(host), ferry::full({1000}, 4.)));
}

TEST_CASE("foreign memory stays until the kernels queued on it have read it") {
  const tensor memory = ferry::arange(0, 12, 1, dtype::i32).to(gpu(1));
  const tensor columns = ferry::arange(0, 12, 1, dtype::i32).view({3, 4}).transpose(0, 1).contiguous();
  std::atomic<bool> freed{false};
  const auto foreign = [&] {
    freed = false;
    return ferry::from_blob(
        memory.data(), {3, 4}, dtype::i32, [&freed](void*) { freed = true; }, gpu(1));
  };
  // Nothing has used it, or what did is done.
  tensor t = foreign();
  t = {};
  CHECK(freed);
  t = foreign();
  (void)ferry::pack(t.transpose(0, 1));
  (void)ferry::pack(t.slice(1, 0, 4, 2));
  fake_cuda::drain();
  t = {};
  CHECK(freed);

  const stream side = ferry::pool_stream(gpu(1));
  tensor dense;
  {
    const fake_cuda::pause nothing_runs;
    t = foreign();
    const ferry::stream_guard guard(side);
    dense = t.transpose(0, 1).contiguous();
    t = {};
    CHECK_FALSE(freed);
  }
  while (!freed) std::this_thread::yield();
  CHECK(ferry::equal(dense.to(host), columns));

  // A device that has failed no longer reads; another that works on does not keep it from being released.
  const quiet_log quiet;
  const tensor far_memory = ferry::arange(0, 12, 1, dtype::i32).to(gpu(4));
  fake_cuda::drain();
  std::atomic<bool> far_freed{false};
  auto nothing_runs = std::make_unique<fake_cuda::pause>();
  tensor far = ferry::from_blob(
      far_memory.data(), {3, 4}, dtype::i32, [&far_freed](void*) { far_freed = true; }, gpu(4));
  (void)ferry::pack(far.slice(1, 0, 4, 2));
  far = {};
  t = foreign();
  (void)ferry::pack(t.slice(1, 0, 4, 2));
  t = {};
  CHECK_FALSE(freed);
  fake_cuda::break_device(1, 719);
  while (!freed) std::this_thread::yield();
  CHECK_FALSE(far_freed);
  fake_cuda::mend();
  nothing_runs.reset();
  while (!far_freed) std::this_thread::yield();
}

TEST_CASE("any runtime call may fail: an error, and the state is as before") {
  const auto scenario = [] {
    const ferry::stream_guard current(ferry::pool_stream(gpu(1)));
    const tensor a = ferry::arange(0, 100, 1, dtype::f32, gpu(1));
    const tensor b = ferry::full({100}, 2., dtype::f64, gpu(1)).to(dtype::f32);
    const tensor c = ferry::zeros({100}, dtype::f32, gpu(2));
    c.copy_(a.view({10, 10}).transpose(0, 1).reshape({100}) * b);
    const tensor result = (c + c).to(host);
    CHECK(ferry::equal(result, ferry::arange(0, 100).view({10, 10}).transpose(0, 1).reshape({100}).to(dtype::f32) * 4));
  };
  scenario();
  const quiet_log quiet;
  for (std::size_t which = 0; which != static_cast<std::size_t>(fake_cuda::call::count_); ++which) {
    const auto call = static_cast<fake_cuda::call>(which);
    const auto first = fake_cuda::calls(call);
    scenario();
    const auto number = static_cast<unsigned>(fake_cuda::calls(call) - first);
    for (unsigned nth = 1; nth <= number; ++nth) {
      CAPTURE(which);
      CAPTURE(nth);
      fake_cuda::fail(call, 719, nth);
      try {
        scenario();  // some failures have no effect
      } catch (const ferry::error& problem) {
        CHECK(problem.kind() == errc::device_failure);
      }
      fake_cuda::fail_nothing();
      scenario();
    }
  }
  CHECK(ferry::get_device_memory_stats(gpu(1)).blocks == 0);
  CHECK(ferry::get_device_memory_stats(gpu(2)).blocks == 0);
}

namespace {

const ferry_test::role use_tensors("use_tensors_on_one_device", [](const std::vector<std::string>& arguments) {
  const device where = ferry::parse_device(arguments.at(0));
  const tensor t = ferry::arange(0, 10, 1, dtype::f32, where);
  (void)(t + t).slice(0, 0, 10, 2).to(dtype::i64).to(host);
  std::string text;
  for (const int each : fake_cuda::contexts()) text += " " + std::to_string(each);
  ferry_test::tell_parent(text);
  return 0;
});

}  // namespace

TEST_CASE("tensors create contexts only on their devices") {
  for (const std::string number : {"0", "5"}) {
    ferry_test::child_process child({.role = "use_tensors_on_one_device", .arguments = {"cuda:" + number}});
    CHECK(child.read_line() == " " + number);
    CHECK(child.wait() == 0);
  }
}

}  // namespace cuda_tensor_test
