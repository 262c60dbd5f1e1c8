#pragma once

// The collectives of the passes of a ddp. Every member makes those of all buckets in each pass, whatever becomes of the pass there:
// a member whose pass fails makes what is left so that it fails on every member, and all begin the next pass in step. Besides
// members compare of each collective which pass and bucket it is for, so that gradients of different ones never meet.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/group/process_group.hpp>
#include <ferry/nn/ddp_options.hpp>
#include <ferry/rpc/context_values.hpp>

#include "ddp_buckets.hpp"
#include "ddp_rows.hpp"

namespace ferry::inline v0::detail {

/// Not thread-safe.
class ddp_averages {
 public:
  struct under_way {
    std::optional<std::size_t> bucket;  ///< whose memory it uses
    future<tensor> average;
    bool abandoned =
        false;  ///< the transport has thrown: its collectives go on, and nothing tells when they let go of the memory
    std::optional<gathered_rows> rows = {};  ///< in the place of an average

    /// Until nothing of it is under way, whatever it ends with.
    void wait() const;
  };
  /// `module`: the number of the ddp in its group.
  ddp_averages(process_group group, nn::bucket_transport transport, timeout limit, std::uint64_t module)
      : group_(std::move(group)), transport_(std::move(transport)), limit_(limit), module_(module) {}

  /// How many passes are over.
  [[nodiscard]] std::uint64_t passes() const noexcept { return passes_; }
  [[nodiscard]] std::size_t sent() const noexcept { return sent_; }
  /// Begins the average of the next bucket of the pass. Throws what the transport throws.
  void send(const tensor& memory);
  /// The same of a bucket of rows; waits until every member has told how many it has. Not by the transport.
  void send_rows(const sparse_tensor& own);
  /// Of a bucket that was sent in this pass.
  [[nodiscard]] tensor wait_for(std::size_t bucket) const { return averages_[first_of_pass_ + bucket].average.get(); }
  [[nodiscard]] sparse_tensor wait_for_rows(std::size_t bucket) const;
  /// The pass is over at this member. Those of the rest of the buckets end with `why` on every member; waits for nothing.
  void end_pass(const std::vector<gradient_bucket>& buckets, const std::string& why) noexcept;
  /// Since take_all(), those of passes that are over, which may be under way.
  [[nodiscard]] bool has_any() const noexcept { return !averages_.empty(); }
  [[nodiscard]] std::vector<under_way> take_all() noexcept;
  /// For the collectives in which members say whether they make the next pass.
  [[nodiscard]] context_values values_of_join() const;

 private:
  [[nodiscard]] context_values values_of_next(const std::string& refusal) const;
  /// Of collectives that end because the pass has failed here.
  [[nodiscard]] context_values values_of_refused(std::string_view why) const;
  void refuse_next(const gradient_bucket& bucket, const context_values& values);

  const process_group group_;
  const nn::bucket_transport transport_;
  const timeout limit_;
  const std::uint64_t module_;
  std::uint64_t passes_ = 0;
  std::size_t sent_ = 0;  // of this pass
  std::size_t first_of_pass_ = 0;
  std::vector<under_way> averages_;
};

}  // namespace ferry::inline v0::detail
