#pragma once

// Ranges of running code that the library itself marks: operations on tensors, passes back through a graph. A profiler, which is
// a higher floor, sets what sees them. While there is none, a range costs one relaxed load and a branch.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ferry::inline v0 {

enum class range_kind : std::uint8_t {
  user,        ///< of the program
  operation,   ///< on tensors
  autograd,    ///< a pass, or one of its messages
  call,        ///< of another worker, at its caller: until the reply was handled
  handler,     ///< of a request, at its callee: until it has a result
  wait,        ///< of a thread, for what others do
  collective,  ///< of several workers, at one of them: until it has ended there
};

/// What a range is. Has static storage duration: recorders keep its address.
struct range_description {
  std::string_view name;
  range_kind kind{};
};

/// What a range can tell of itself when it ends. Asked only if the recorder wants it.
class range_details {
 public:
  /// Of the tensors that it took: "[[2, 3], [3]]".
  [[nodiscard]] virtual std::string shapes() const = 0;
  /// Of the tensors that it made.
  [[nodiscard]] virtual std::int64_t bytes() const noexcept = 0;

 protected:
  ~range_details() = default;
};

namespace detail {

/// A range that is being recorded, in the frame of the code that runs it.
struct open_range {
  const struct range_sink* sink = nullptr;  ///< null: it is not recorded
  const range_description* what = nullptr;
  void* recording = nullptr;    ///< of the code
  const void* whole = nullptr;  ///< of the process
  std::uint64_t number = 0;
  std::uint64_t parent = 0;
  std::uint64_t context_parent = 0;
  std::int64_t began = 0;
  std::int32_t node = -1;
  bool shown = false;           ///< in the timeline of a tool
  open_range* outer = nullptr;  ///< the one around it on this thread
};

/// A range that is being recorded, and that may end on another thread than the one that has begun it. One that is destroyed before its
/// end is not recorded.
class recorded_span {
 public:
  recorded_span() = default;
  virtual ~recorded_span() = default;
  recorded_span(const recorded_span&) = delete;
  recorded_span& operator=(const recorded_span&) = delete;
  /// Once. `call`: a number that it has at all workers that take part, and no other one of that name; 0: none. `details` may be null.
  virtual void end(std::uint64_t call, const range_details* details, bool failed) noexcept = 0;
};

/// What sees ranges. Constant: it is never destroyed.
struct range_sink {
  /// Leaves `range` as it is if nothing records on this thread; otherwise sets its sink.
  void (*begin)(open_range& range) noexcept;
  void (*end)(open_range& range, const range_details* details, bool failed) noexcept;
  /// Null: nothing records it.
  std::unique_ptr<recorded_span> (*begin_span)(std::string_view name, range_kind kind, std::int32_t node) noexcept;
};

extern std::atomic<const range_sink*> range_sink_in_use;

/// Whether any range of the process may be recorded now.
[[nodiscard]] inline bool ranges_watched() noexcept {
  return range_sink_in_use.load(std::memory_order_relaxed) != nullptr;
}

/// Begins here, as a part of what the calling thread does, at the worker of that id. Null: nothing records it. Ask ranges_watched()
/// first.
[[nodiscard]] std::unique_ptr<recorded_span> begin_span(std::string_view name, range_kind kind,
                                                        std::int32_t node) noexcept;

/// One run of the code of its scope. An exception that leaves the scope marks it as failed.
class traced_range {
 public:
  explicit traced_range(const range_description& what) noexcept {
    if (ranges_watched()) [[unlikely]]
      begin(what);
  }
  ~traced_range() {
    if (open_.sink) [[unlikely]]
      end(nullptr, unwinds());
  }
  traced_range(const traced_range&) = delete;
  traced_range& operator=(const traced_range&) = delete;

  /// Ends it early.
  void end(const range_details* details, bool failed) noexcept;
  [[nodiscard]] bool recorded() const noexcept { return open_.sink != nullptr; }

 private:
  void begin(const range_description& what) noexcept;
  [[nodiscard]] bool unwinds() const noexcept;

  open_range open_;
  int exceptions_ = 0;  // in flight when it began
};

}  // namespace detail
}  // namespace ferry::inline v0
