#include "nccl_agreement.hpp"

#include <algorithm>
#include <cstring>

#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr unsigned bit_yes = 1;
constexpr unsigned bit_never = 2;
constexpr std::int64_t longest = 1 + sizeof(nccl_unique_id::bytes);

}  // namespace

tensor nccl_agreement::word::encode() const {
  const tensor made = empty({id ? longest : 1}, dtype::u8);
  auto* const bytes = static_cast<unsigned char*>(made.data());
  bytes[0] = static_cast<unsigned char>((yes ? bit_yes : 0U) | (never ? bit_never : 0U));
  if (id) std::memcpy(bytes + 1, id->bytes, sizeof id->bytes);
  return made;
}

std::optional<nccl_agreement::word> nccl_agreement::word::decode(const tensor& bytes) {
  if (!bytes.device().is_cpu() || bytes.dtype() != dtype::u8 || !bytes.is_contiguous()) return std::nullopt;
  if (bytes.numel() != 1 && bytes.numel() != longest) return std::nullopt;
  const auto* const from = static_cast<const unsigned char*>(bytes.data());
  if (from[0] > bit_never) return std::nullopt;  // one or the other
  word made{.yes = (from[0] & bit_yes) != 0, .never = (from[0] & bit_never) != 0};
  if (bytes.numel() == longest) std::memcpy(made.id.emplace().bytes, from + 1, sizeof(nccl_unique_id::bytes));
  return made;
}

std::string_view nccl_agreement::why_unexpected(int from, std::uint32_t tag) const {
  const auto question = static_cast<int>(tag / tags_of_question);
  const auto round = static_cast<int>(tag % tags_of_question);
  if (question > 1 || round >= rounds_ || before(round) != from) return "which is not of it";
  if (question < question_ || (question == question_ && round < received_) || mail_.contains(tag)) return "twice";
  return {};
}

std::vector<nccl_agreement::outgoing> nccl_agreement::go_on() {
  std::vector<outgoing> made;
  for (;;) {
    if (sent_ == received_ && sent_ != rounds_) {
      made.push_back({further(sent_), tag_of(sent_), known_});
      ++sent_;
    }
    const auto come = received_ == rounds_ ? mail_.end() : mail_.find(tag_of(received_));
    if (come == mail_.end()) return made;
    known_.yes = known_.yes && come->second.yes;
    known_.never = known_.never || come->second.never;
    if (!known_.id) known_.id = come->second.id;
    mail_.erase(come);
    ++received_;
  }
}

std::optional<nccl_agreement::word> nccl_agreement::take_answer() {
  if (received_ != rounds_ || answered_) return std::nullopt;
  answered_ = true;
  return known_;
}

void nccl_agreement::ask_again(bool yes) {
  question_ = 1;
  sent_ = received_ = 0;
  answered_ = false;
  known_ = {.yes = yes};
}

bool nccl_agreement::is_refused() const {
  return std::any_of(mail_.begin(), mail_.end(),
                     [](const auto& each) { return each.first >= tags_of_question && !each.second.yes; });
}

bool nccl_agreement::needs(int member) const {
  for (int round = received_; round != rounds_; ++round) {
    if (before(round) == member && !mail_.contains(tag_of(round))) return true;
  }
  for (int round = sent_; round != rounds_; ++round) {
    if (further(round) == member) return true;
  }
  return false;
}

}  // namespace ferry::inline v0::detail
