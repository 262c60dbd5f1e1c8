// The request of a scraper, as metrics_server reads it. Input: u8 (how large the pieces are in which it arrives), then the bytes.

#include "../../src/profiler/http_request.hpp"

#include <algorithm>
#include <string>

#include "targets.hpp"

namespace fuzz {
namespace http_request_target {
namespace {

using request = ferry::detail::http_request;
using progress = request::progress;

void check(std::string_view all, const request& found) {
  const std::size_t end = all.find("\r\n\r\n");
  require(end != all.npos && end + 4 <= request::most_bytes, "a request has an end, and is not too long");
  const auto lies_within = [&](std::string_view part) {
    return !part.empty() && part.data() >= all.data() && part.data() + part.size() <= all.data() + end;
  };
  require(lies_within(found.method) && lies_within(found.path), "what is found lies within the request");
  require(all.starts_with(found.method) && all[found.method.size()] == ' ', "a request begins with its method");
  require(found.path.data() == all.data() + found.method.size() + 1 && found.path.front() == '/',
          "the path follows the method");
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  require(std::all_of(found.path.begin(), found.path.end(), is_visible) && found.path.find('?') == found.path.npos,
          "a path is one word of ASCII without a query");
  require(std::all_of(found.method.begin(), found.method.end(), is_visible), "a method is one word of ASCII");
  require(all.substr(0, end).find('\0') == all.npos, "no line has a NUL");
  // Written anew, it is the same request.
  const std::string again = std::string(found.method) + ' ' + std::string(found.path) + " HTTP/1.1\r\nHost: x\r\n" +
                            (found.accepts_html ? "Accept: text/html\r\n" : "") + "\r\n";
  request second;
  if (again.size() > request::most_bytes) return;
  require(request::read(again, second) == progress::complete && second.method == found.method &&
              second.path == found.path && second.accepts_html == found.accepts_html,
          "what was read can be asked again");
}

void run(bytes input) {
  source from(input);
  const std::size_t step = std::size_t{from.number<std::uint8_t>()} + 1;
  const std::string_view all = text_of(from.rest());
  request whole;
  const progress at_once = request::read(all, whole);
  if (at_once == progress::complete) check(all, whole);
  if (all.size() >= request::most_bytes) require(at_once != progress::incomplete, "a request ends");
  // In pieces, as a connection brings it: the first answer but `incomplete` is the answer to all of it.
  for (std::size_t size = 0; size < all.size(); size += step) {
    request part;
    const progress so_far = request::read(all.substr(0, size), part);
    if (so_far == progress::incomplete) continue;
    require(so_far == at_once, "more bytes do not change what a request is");
    if (so_far == progress::complete)
      require(part.method == whole.method && part.path == whole.path && part.accepts_html == whole.accepts_html,
              "more bytes do not change what was asked");
    return;
  }
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, std::uint8_t step, std::string_view text) {
    sink(name, seed().number(step).add(text));
  };
  add("prometheus", 255,
      "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9464\r\nUser-Agent: Prometheus/2.45.0\r\n"
      "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
      "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n");
  add("curl", 0, "GET /slow HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n");
  add("browser", 7, "GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/html,application/xhtml+xml;q=0.9\r\n\r\n");
  add("old", 1, "GET /metrics?x=1 HTTP/1.0\r\n\r\nmore");
  add("post", 3, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
  add("bare-newline", 0, "GET /metrics HTTP/1.1\nHost: x\n\n");
  add("no-host", 0, "GET /metrics HTTP/1.1\r\nX: y\r\n\r\n");
  add("two-hosts", 0, "GET /metrics HTTP/1.1\r\nHost: x\r\nHOST: y\r\n\r\n");
  add("tls", 0, "\x16\x03\x01\x02\n");
  add("too-long", 255, std::string(request::most_bytes, 'x'));
}

}  // namespace
}  // namespace http_request_target

const target http_request{"http_request", &http_request_target::run, &http_request_target::seeds};

}  // namespace fuzz
