#pragma once

// The one thread of the process that resolves names, accepts, connects and performs handshakes, and looks after memory that
// connections have shared. It sleeps when idle. Traffic of open connections never passes through it.

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

namespace ferry::inline v0::detail {

class control_thread {
 public:
  /// The process-wide instance, created on first use and destroyed with its last owner. Throws errc::system_failure.
  static std::shared_ptr<control_thread> shared();

  control_thread();
  /// Stops and joins the thread; called on the thread itself, it lets the thread run to its end instead.
  ~control_thread();
  control_thread(const control_thread&) = delete;
  control_thread& operator=(const control_thread&) = delete;

  [[nodiscard]] asio::io_context& context() noexcept { return loop_->context; }
  [[nodiscard]] bool is_current() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  /// Runs `function` on the thread and waits for it; at once if the caller is the thread. Rethrows what it throws.
  template <class Function>
  void run(Function function) {
    if (is_current()) return function();
    // Shared: the thread may still be inside the task when the waiter returns.
    const auto task = std::make_shared<std::packaged_task<void()>>(std::move(function));
    auto done = task->get_future();
    asio::post(context(), [task] { (*task)(); });
    done.get();
  }

 private:
  struct loop {
    asio::io_context context{1};
  };
  static void run_loop(const std::shared_ptr<loop>& running) noexcept;

  std::shared_ptr<loop> loop_;  // shared with the thread, which may briefly outlive this object
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::thread thread_;
};

}  // namespace ferry::inline v0::detail
