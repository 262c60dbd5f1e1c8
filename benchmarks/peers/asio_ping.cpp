// A round trip of 72 bytes over loopback TCP between two threads: blocking send() and recv(), and Asio with one thread
// and with four threads in the answering io_context. It shows why ferry's message path does not run on Asio
// (docs/decisions/reactor.md). Usage: asio_ping [same|two]

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <pthread.h>
#include <asio.hpp>

namespace {

using asio::ip::tcp;
constexpr std::size_t size = 72;
constexpr int rounds = 20'000;

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

double median_us(const std::vector<double>& all) {
  auto copy = all;
  std::nth_element(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(copy.size() / 2), copy.end());
  return copy[copy.size() / 2];
}

template <class Exchange>
double measure(Exchange exchange) {
  std::vector<double> samples;
  for (int i = 0; i != rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    exchange();
    samples.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return median_us(samples);
}

struct sockets {
  asio::io_context context;
  tcp::socket near{context};
  tcp::socket far;
  explicit sockets(asio::io_context& far_context) : far(far_context) {
    tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    near.connect(acceptor.local_endpoint());
    acceptor.accept(far);
    near.set_option(tcp::no_delay(true));
    far.set_option(tcp::no_delay(true));
  }
};

double blocking(int far_cpu) {
  asio::io_context unused;
  sockets ends(unused);
  std::thread echo([&] {
    pin(far_cpu);
    std::array<char, size> bytes{};
    asio::error_code error;
    while (asio::read(ends.far, asio::buffer(bytes), error) == size) asio::write(ends.far, asio::buffer(bytes), error);
  });
  std::array<char, size> bytes{};
  const double result = measure([&] {
    asio::write(ends.near, asio::buffer(bytes));
    asio::read(ends.near, asio::buffer(bytes));
  });
  ends.near.shutdown(tcp::socket::shutdown_both);
  echo.join();
  return result;
}

struct session : std::enable_shared_from_this<session> {
  tcp::socket& socket;
  std::array<char, size> bytes{};
  explicit session(tcp::socket& s) : socket(s) {}
  void go() {
    asio::async_read(socket, asio::buffer(bytes), [self = shared_from_this()](asio::error_code error, std::size_t) {
      if (error) return;
      asio::async_write(self->socket, asio::buffer(self->bytes), [self](asio::error_code failed, std::size_t) {
        if (!failed) self->go();
      });
    });
  }
};

double through_asio(int far_cpu, int far_threads) {
  asio::io_context far_context;
  sockets ends(far_context);
  std::make_shared<session>(ends.far)->go();
  std::vector<std::thread> threads;
  for (int i = 0; i != far_threads; ++i) {
    threads.emplace_back([&] {
      pin(far_cpu);
      far_context.run();
    });
  }
  std::array<char, size> bytes{};
  const double result = measure([&] {
    bool done = false;
    asio::async_write(ends.near, asio::buffer(bytes), [&](asio::error_code, std::size_t) {
      asio::async_read(ends.near, asio::buffer(bytes), [&](asio::error_code, std::size_t) { done = true; });
    });
    ends.context.restart();
    while (!done) ends.context.run_one();
  });
  ends.near.shutdown(tcp::socket::shutdown_both);
  for (auto& thread : threads) thread.join();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const bool two_cores = argc > 1 && std::strcmp(argv[1], "two") == 0;
  pin(0);
  const int far_cpu = two_cores ? 1 : 0;
  for (int repeat = 0; repeat != 5; ++repeat) {
    const double raw = blocking(far_cpu);
    const double one = through_asio(far_cpu, 1);
    const double four = through_asio(far_cpu, 4);
    std::printf("%s  blocking %6.2f us   asio, 1 thread %6.2f us (%.2fx)   asio, 4 threads %6.2f us (%.2fx)\n",
                two_cores ? "two cores" : "same core", raw, one, one / raw, four, four / raw);
  }
}
