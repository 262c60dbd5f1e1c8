#include <ferry/profiler/metrics_server.hpp>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <asio/buffer.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>
#include <ferry/rpc/detail/future_state.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/transport/reactor.hpp>

#include "../base/net/socket_address.hpp"
#include "../base/parse_number.hpp"
#include "../base/peer_log.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "../transport/reactor/control_thread.hpp"
#include "http_request.hpp"
#include "metrics_pages.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using asio::ip::tcp;

// "host:port", with a port of 0, too.
tcp::endpoint scrape_endpoint(const profiler::metrics_server_options& how) {
  const std::string_view text = how.listen;
  const std::size_t colon = text.rfind(':');
  constexpr std::uint32_t no_port = 65536;
  const std::uint32_t port =
      colon == text.npos ? no_port : parse_number<std::uint32_t>(text.substr(colon + 1)).value_or(no_port);
  std::string host(text.substr(0, colon == text.npos ? 0 : colon));
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    host.clear();  // IPv6 needs its brackets
  }
  if (host == "localhost") host = "127.0.0.1";
  const auto number = static_cast<std::uint16_t>(port);
  const auto address = socket_address::from_literal(host, number);
  if (!address || port >= no_port) {
    throw_error(errc::bad_address,
                fmt::format("metrics_server_options::listen is '{}': it must be an IP address and a port, as in "
                            "127.0.0.1:9464 or [::1]:9464",
                            how.listen));
  }
  if (!address->is_loopback() && !how.beyond_loopback) {
    throw_error(
        errc::authentication_required,
        fmt::format(
            "metrics would be served on {} to other machines, without authentication: listen on 127.0.0.1, or set "
            "metrics_server_options::beyond_loopback if the network is trusted",
            how.listen));
  }
  asio::error_code problem;
  const asio::ip::address parsed = asio::ip::make_address(address->host(), problem);
  if (problem)
    throw_error(errc::bad_address, fmt::format("metrics cannot be served on '{}': {}", how.listen, problem.message()));
  return {parsed, number};
}

constexpr std::string_view exposition = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view plain = "text/plain; charset=utf-8";
constexpr std::string_view html = "text/html; charset=utf-8";

// Pages run no scripts and load nothing, whatever names are in them.
std::string http_answer(std::string_view status, std::string_view type, std::string_view body,
                        std::string_view more = {}) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
      "Connection: close\r\n\r\n{}",
      status, type, body.size(), more, body);
}

}  // namespace
}  // namespace detail

namespace profiler {

/// The listener, and what its connections share. Runs on the control thread, but for make_answer() and what the server calls.
class metrics_server::state final : public std::enable_shared_from_this<state> {
 public:
  /// Of these, one is not empty. With `read` there are pages.
  state(std::function<metrics_snapshot()> read, std::function<std::string()> text, const metrics_server_options& how)
      : how_(how),
        read_(std::move(read)),
        text_(std::move(text)),
        control_(detail::control_thread::shared()),
        reactor_(shared_reactor()),
        acceptor_(control_->context()),
        accept_again_(control_->context()) {}

  void listen();
  /// Closes everything, and waits until no page is being made. On any thread.
  void end() noexcept;
  [[nodiscard]] asio::ip::tcp::endpoint where() const noexcept { return where_; }
  [[nodiscard]] detail::control_thread& control() noexcept { return *control_; }

  [[nodiscard]] asio::io_context& context() noexcept { return control_->context(); }
  [[nodiscard]] std::chrono::milliseconds time_limit() const noexcept { return how_.time_limit; }
  [[nodiscard]] const metrics_server_options& options() const noexcept { return how_; }
  [[nodiscard]] bool answers_host(const detail::http_request& of) const noexcept {
    return how_.beyond_loopback || of.names_loopback();
  }
  [[nodiscard]] bool has_page(std::string_view path) const noexcept {
    return path == text_path || (read_ && detail::is_metrics_page(path));
  }
  /// Has a handler thread make the page, and the session answer with it.
  void order_page(std::shared_ptr<session> whom, const detail::http_request& wanted);
  void ended(const session& which) noexcept;

 private:
  struct order;
  void close() noexcept;
  void accept();
  void admit(asio::ip::tcp::socket socket);
  [[nodiscard]] bool make_room();
  [[nodiscard]] std::string make_page(const std::string& path, bool as_html) const;
  [[nodiscard]] std::string make_answer(const std::string& path, bool as_html) noexcept;

  static constexpr std::string_view text_path = "/metrics";
  const metrics_server_options how_;
  std::function<metrics_snapshot()> read_;  // this one and the next are dropped by end()
  std::function<std::string()> text_;
  const std::shared_ptr<detail::control_thread> control_;
  const std::shared_ptr<reactor> reactor_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer accept_again_;
  asio::ip::tcp::endpoint where_;
  std::list<std::shared_ptr<session>> sessions_;  // oldest first

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::size_t pages_under_way_ = 0;
  bool closed_ = false;
};

/// One connection: a request, an answer. Runs on the control thread.
class metrics_server::session final : public std::enable_shared_from_this<session> {
 public:
  session(std::shared_ptr<state> of, asio::ip::tcp::socket socket)
      : of_(std::move(of)), socket_(std::move(socket)), timer_(of_->context()) {}

  void start() {
    limit_time();
    read();
  }
  void answer(std::string text);
  void close() noexcept;
  [[nodiscard]] bool is_reading() const noexcept { return phase_ == phase::reading; }

 private:
  enum class phase : std::uint8_t { reading, waiting, answering, draining, closed };

  void limit_time();
  void read();
  void take_request();
  void drain();

  const std::shared_ptr<state> of_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  phase phase_ = phase::reading;
  std::array<char, 1024> chunk_{};
  std::string in_;
  std::string out_;
  std::size_t drained_ = 0;
};

// ---------------------------------------------------------------- connections

void metrics_server::session::limit_time() {
  timer_.expires_after(of_->time_limit());
  timer_.async_wait([self = shared_from_this()](const asio::error_code& stopped) {
    if (!stopped) self->close();
  });
}

void metrics_server::session::close() noexcept {
  if (std::exchange(phase_, phase::closed) == phase::closed) return;
  asio::error_code ignored;  // it is over, whatever it was
  socket_.close(ignored);
  timer_.cancel();
  of_->ended(*this);
}

void metrics_server::session::read() {
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](const asio::error_code& problem, std::size_t size) {
                            if (self->phase_ != phase::reading) return;
                            if (problem) return self->close();
                            self->in_.append(self->chunk_.data(), size);
                            self->take_request();
                          });
}

void metrics_server::session::take_request() {
  detail::http_request found;
  switch (detail::http_request::read(in_, found)) {
    case detail::http_request::progress::incomplete: return read();
    case detail::http_request::progress::bad:
      return answer(detail::http_answer("400 Bad Request", detail::plain, "no HTTP request\n"));
    case detail::http_request::progress::complete: break;
  }
  if (!of_->answers_host(found)) {
    return answer(detail::http_answer("421 Misdirected Request", detail::plain,
                                      "metrics on loopback are for requests to localhost or an IP address\n"));
  }
  if (found.method != "GET")
    return answer(detail::http_answer("405 Method Not Allowed", detail::plain, "only GET\n", "Allow: GET\r\n"));
  if (!of_->has_page(found.path))
    return answer(detail::http_answer("404 Not Found", detail::plain, "there is no such page\n"));
  phase_ = phase::waiting;
  limit_time();
  of_->order_page(shared_from_this(), found);
}

void metrics_server::session::answer(std::string text) {
  if (phase_ == phase::closed) return;
  phase_ = phase::answering;
  out_ = std::move(text);
  limit_time();
  asio::async_write(socket_, asio::buffer(out_),
                    [self = shared_from_this()](const asio::error_code& problem, std::size_t) {
                      if (self->phase_ != phase::answering) return;
                      if (problem) return self->close();
                      self->phase_ = phase::draining;
                      asio::error_code ignored;
                      self->socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
                      self->drain();
                    });
}

// A socket that is closed with bytes unread makes its peer drop the answer.
void metrics_server::session::drain() {
  constexpr std::size_t most_drained = std::size_t{64} * 1024;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](const asio::error_code& problem, std::size_t size) {
                            if (self->phase_ != phase::draining) return;
                            self->drained_ += size;
                            if (problem || self->drained_ > most_drained) return self->close();
                            self->drain();
                          });
}

// ---------------------------------------------------------------- the listener

void metrics_server::state::listen() {
  const asio::ip::tcp::endpoint wanted = detail::scrape_endpoint(how_);
  asio::error_code problem;
  const auto attempt = [&](auto action) {
    if (!problem) action();
  };
  attempt([&] { acceptor_.open(wanted.protocol(), problem); });
  attempt([&] { ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC); });
  attempt([&] { acceptor_.set_option(asio::socket_base::reuse_address(true), problem); });
  attempt([&] { acceptor_.bind(wanted, problem); });
  attempt([&] { acceptor_.listen(asio::socket_base::max_listen_connections, problem); });
  attempt([&] { where_ = acceptor_.local_endpoint(problem); });
  if (problem) {
    const errc code = problem.value() == EADDRINUSE ? errc::address_in_use : errc::system_failure;
    throw_error(code, fmt::format("metrics cannot be served on {}: {}", how_.listen, problem.message()));
  }
  accept();
}

void metrics_server::state::accept() {
  acceptor_.async_accept([self = shared_from_this()](const asio::error_code& problem, asio::ip::tcp::socket socket) {
    if (!self->acceptor_.is_open()) return;
    if (!problem) {
      // Without memory for it, the connection is closed.
      if (const auto lacking = detail::caught([&] { self->admit(std::move(socket)); }))
        detail::log_about("metrics", log_level::warning,
                          [&] { return "a connection for metrics is closed: " + detail::describe_exception(lacking); });
      return self->accept();
    }
    // The connection may stay in the queue (no descriptors): accepting again at once would spin.
    constexpr std::chrono::milliseconds pause{100};
    self->accept_again_.expires_after(pause);
    self->accept_again_.async_wait([self](const asio::error_code& stopped) {
      if (!stopped && self->acceptor_.is_open()) self->accept();
    });
  });
}

void metrics_server::state::admit(asio::ip::tcp::socket socket) {
  if (sessions_.size() >= how_.max_connections && !make_room()) return;
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  const auto fresh = std::make_shared<session>(shared_from_this(), std::move(socket));
  sessions_.push_back(fresh);
  fresh->start();
}

bool metrics_server::state::make_room() {
  for (const auto& each : sessions_) {
    if (!each->is_reading()) continue;
    const std::shared_ptr<session> oldest = each;
    oldest->close();
    return true;
  }
  return false;
}

void metrics_server::state::ended(const session& which) noexcept {
  std::erase_if(sessions_, [&](const auto& each) { return each.get() == &which; });
}

void metrics_server::state::close() noexcept {
  asio::error_code ignored;
  acceptor_.close(ignored);
  accept_again_.cancel();
  while (!sessions_.empty()) {
    const std::shared_ptr<session> last = sessions_.back();
    last->close();
  }
}

// ---------------------------------------------------------------- pages

struct metrics_server::state::order final : work {
  order(std::shared_ptr<session> w, std::shared_ptr<state> o, const detail::http_request& wanted)
      : whom(std::move(w)), of(std::move(o)), path(wanted.path), as_html(wanted.accepts_html) {
    run = [](work* self) noexcept {
      const std::unique_ptr<order> own(static_cast<order*>(self));
      std::string text = own->of->make_answer(own->path, own->as_html);
      detail::control_thread& control = own->of->control();
      (void)detail::caught([&] {  // without memory the connection ends with its time
        asio::post(control.context(), [whom = own->whom, of = own->of, answer = std::move(text)]() mutable {
          whom->answer(std::move(answer));
        });
      });
    };
  }
  std::shared_ptr<session> whom;
  std::shared_ptr<state> of;
  std::string path;
  bool as_html;
};

void metrics_server::state::order_page(std::shared_ptr<session> whom, const detail::http_request& wanted) {
  reactor_->post_elsewhere(new order(std::move(whom), shared_from_this(), wanted));
}

std::string metrics_server::state::make_page(const std::string& path, bool as_html) const {
  if (path == text_path)
    return detail::http_answer("200 OK", detail::exposition, read_ ? prometheus_text(read_()) : text_());
  const detail::page_form form = as_html ? detail::page_form::html : detail::page_form::text;
  return detail::http_answer("200 OK", as_html ? detail::html : detail::plain,
                             detail::metrics_page(read_(), path, form).value());
}

std::string metrics_server::state::make_answer(const std::string& path, bool as_html) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return {};
    ++pages_under_way_;
  }
  std::string answer;
  try {
    answer = make_page(path, as_html);
  } catch (...) {
    detail::log_about("metrics", log_level::warning, [] {
      return "the text of metrics could not be made: " + detail::describe_exception(detail::current_error());
    });
    answer = detail::http_answer("500 Internal Server Error", detail::plain, "the text could not be made\n");
  }
  const std::lock_guard lock(mutex_);
  --pages_under_way_;
  changed_.notify_all();
  return answer;
}

void metrics_server::state::end() noexcept {
  const blocking_scope blocking;
  (void)detail::caught([this] { control_->run([this] { close(); }); });
  std::unique_lock lock(mutex_);
  closed_ = true;
  changed_.wait(lock, [this] { return pages_under_way_ == 0; });
  // Requests that wait for a thread keep this object; what it reads, and the program's own, is not needed any more.
  std::function<metrics_snapshot()> read;
  std::function<std::string()> text;
  read.swap(read_);
  text.swap(text_);
  lock.unlock();
}

// ---------------------------------------------------------------- the server

metrics_server::metrics_server(const metrics& of, const metrics_server_options& how)
    : state_(std::make_shared<state>(reader_of(of), nullptr, how)) {
  listen();
}

metrics_server::metrics_server(std::function<std::string()> text, const metrics_server_options& how)
    : state_(std::make_shared<state>(nullptr, std::move(text), how)) {
  listen();
}

void metrics_server::listen() {
  const metrics_server_options& how = state_->options();
  if (how.max_connections == 0) throw_error(errc::invalid_argument, "metrics_server_options::max_connections is zero");
  if (how.time_limit.count() <= 0)
    throw_error(errc::invalid_argument, "metrics_server_options::time_limit is not positive");
  state_->control().run([this] { state_->listen(); });
}

metrics_server::~metrics_server() { state_->end(); }

std::uint16_t metrics_server::port() const noexcept { return state_->where().port(); }

std::string metrics_server::url() const {
  return fmt::format("http://{}/metrics", detail::host_and_port(state_->where().address().to_string(), port()));
}

}  // namespace profiler
}  // namespace ferry::inline v0
