#pragma once

// Whether all members can make a collective by NCCL, which waits for ever for one that does not.

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include <ferry/tensor/tensor.hpp>

#include "nccl_library.hpp"

namespace ferry::inline v0::detail {

/// Dissemination: in round k each member tells the one 2^k ranks further what it knows. After ceil(log2 n) rounds each knows whether
/// all say yes, whether one never will, and the number that the first member has made up. There are two questions; the second is asked
/// only after a yes to the first, by all members or by none. Not thread-safe.
class nccl_agreement {
 public:
  /// Of its messages; no piece of a tensor has this number.
  static constexpr std::uint32_t piece = 0xffffffffU;

  struct word {
    bool yes = false;
    bool never = false;  ///< nor to a later collective
    std::optional<nccl_unique_id> id = {};

    [[nodiscard]] tensor encode() const;
    /// Nothing: these are no such bytes.
    [[nodiscard]] static std::optional<word> decode(const tensor& bytes);
  };
  struct outgoing {
    int to = 0;
    std::uint32_t tag = 0;
    word what;
  };

  nccl_agreement(int rank, int members, word own) : rank_(rank), members_(members), known_(own) {
    while ((std::int64_t{1} << rounds_) < members) ++rounds_;
  }

  /// Why it is no message that is still to come; empty: it is one.
  [[nodiscard]] std::string_view why_unexpected(int from, std::uint32_t tag) const;
  void take(std::uint32_t tag, word what) { mail_.emplace(tag, what); }
  /// What is to be sent now.
  [[nodiscard]] std::vector<outgoing> go_on();
  /// The answer to the question, once; nothing while it is open.
  [[nodiscard]] std::optional<word> take_answer();
  /// The second question; after the answer to the first.
  void ask_again(bool yes);
  /// Whether another member has said no to the second question.
  [[nodiscard]] bool is_refused() const;
  /// Whether a word from, or for, that member is missing.
  [[nodiscard]] bool needs(int member) const;

 private:
  static constexpr std::uint32_t tags_of_question = 64;
  [[nodiscard]] std::uint32_t tag_of(int round) const noexcept {
    return static_cast<std::uint32_t>(question_) * tags_of_question + static_cast<std::uint32_t>(round);
  }
  [[nodiscard]] int further(int round) const noexcept {
    return static_cast<int>((rank_ + (std::int64_t{1} << round)) % members_);
  }
  [[nodiscard]] int before(int round) const noexcept {
    return static_cast<int>((rank_ + members_ - (std::int64_t{1} << round)) % members_);
  }

  const int rank_;
  const int members_;
  int rounds_ = 0;
  int question_ = 0;
  int sent_ = 0;      // rounds of the question
  int received_ = 0;  // the same
  bool answered_ = false;
  word known_;
  std::map<std::uint32_t, word> mail_;
};

}  // namespace ferry::inline v0::detail
