// Messages of TensorPipe, from callback to callback: what waits for a reply on another thread pays for being woken, too. Small messages
// are payloads; large ones are a tensor, read into the same memory each time.

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <tensorpipe/tensorpipe.h>

#include "calls.hpp"

namespace {

using tensorpipe::Error;

std::shared_ptr<tensorpipe::Context> context_of(const peer::job& of) {
  auto context = std::make_shared<tensorpipe::Context>();
  if (of.transport == "shm") {
    context->registerTransport(0, "shm", tensorpipe::transport::shm::create());
  } else {
    context->registerTransport(0, "uv", tensorpipe::transport::uv::create());
  }
  context->registerChannel(0, "basic", tensorpipe::channel::basic::create());
  return context;
}

void check(const Error& error) {
  if (error) throw std::runtime_error(error.what());
}

// One end of a pipe: reads a message into its memory, then calls `on_message`.
struct end {
  end(std::shared_ptr<tensorpipe::Pipe> through, std::size_t bytes) : pipe(std::move(through)), memory(bytes, 'm') {}

  void read(std::function<void(const Error&)> on_message) {
    pipe->readDescriptor([this, on_message = std::move(on_message)](const Error& error, tensorpipe::Descriptor about) {
      if (error) return on_message(error);
      tensorpipe::Allocation place;
      for (std::size_t i = 0; i != about.payloads.size(); ++i) place.payloads.push_back({memory.data()});
      for (std::size_t i = 0; i != about.tensors.size(); ++i)
        place.tensors.push_back({tensorpipe::CpuBuffer{.ptr = memory.data()}});
      pipe->read(std::move(place), on_message);
    });
  }
  void write(std::vector<char>& bytes, bool as_tensor) {
    tensorpipe::Message message;
    if (as_tensor) {
      tensorpipe::Message::Tensor tensor;
      tensor.buffer = tensorpipe::CpuBuffer{.ptr = bytes.data()};
      tensor.length = bytes.size();
      tensor.targetDevice = tensorpipe::Device(tensorpipe::kCpuDeviceType, 0);
      message.tensors.push_back(std::move(tensor));
    } else {
      message.payloads.push_back({bytes.data(), bytes.size()});
    }
    pipe->write(std::move(message), [](const Error&) {});
  }

  std::shared_ptr<tensorpipe::Pipe> pipe;
  std::vector<char> memory;
};

void serve(const peer::job& of, const peer::announcement& announce) {
  const auto context = context_of(of);
  const bool shm = of.transport == "shm";
  const auto listener = context->listen({shm ? "shm://" + peer::fresh_path() : "uv://127.0.0.1:0"});
  std::promise<std::shared_ptr<tensorpipe::Pipe>> accepted;
  listener->accept([&](const Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) {
    if (error) return accepted.set_exception(std::make_exception_ptr(std::runtime_error(error.what())));
    accepted.set_value(std::move(pipe));
  });
  announce(listener->url(shm ? "shm" : "uv"));
  end here(accepted.get_future().get(), of.bytes);
  std::vector<char> reply(of.reply_bytes(), 'r');
  std::promise<void> ended;
  std::function<void(const Error&)> answer = [&](const Error& error) {
    if (error) return ended.set_value();
    here.write(reply, false);
    here.read(answer);
  };
  here.read(answer);
  ended.get_future().get();
}

std::vector<double> measure(const peer::job& of, const std::string& address) {
  using clock_type = std::chrono::steady_clock;
  const auto context = context_of(of);
  end here(context->connect(address), of.reply_bytes());
  std::vector<char> request(of.bytes, 'q');
  const bool as_tensor = of.what == peer::kind::send;
  const bool rate = of.what == peer::kind::rate;
  std::vector<double> samples;
  samples.reserve(1 << 16);
  std::promise<void> done;
  peer::rate_window window(of);
  std::size_t running = 0;  // from here on of the thread of the callbacks
  auto last = clock_type::now();
  const auto until = last + of.window;
  std::function<void(const Error&)> on_reply = [&](const Error& error) {
    if (error) return done.set_exception(std::make_exception_ptr(std::runtime_error(error.what())));
    bool again = true;
    if (rate) {
      again = window.again();
    } else {
      const auto now = clock_type::now();
      samples.push_back(std::chrono::duration<double, std::micro>(now - last).count());
      last = now;
      again = now < until || samples.size() < 5;
    }
    if (again) {
      here.write(request, as_tensor);
      return here.read(on_reply);
    }
    if (--running == 0) done.set_value();
  };
  running = rate ? peer::in_flight : 1;
  for (std::size_t i = running; i != 0; --i) {
    here.read(on_reply);
    here.write(request, as_tensor);
  }
  done.get_future().get();
  if (rate) return {window.per_second()};
  samples.erase(samples.begin(), samples.begin() + 2);
  return samples;
}

}  // namespace

int main(int argc, char** argv) {
  return peer::run(argc, argv,
                   {"TensorPipe (uv or shm, basic channel, untyped messages, from callback to callback)",
                    {"tcp", "shm"},
                    serve,
                    measure});
}
