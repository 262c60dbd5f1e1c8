// All members of an agreement in one thread, their words in any order.

#include "group/nccl_agreement.hpp"

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/tensor/factories.hpp>

namespace nccl_agreement_test {

using ferry::detail::nccl_agreement;
using ferry::detail::nccl_unique_id;

nccl_unique_id id_of(const char* text) {
  nccl_unique_id made{};
  std::strcpy(made.bytes, text);
  return made;
}

struct on_the_way {
  int from;
  nccl_agreement::outgoing what;
};

// Asks all; the answers by rank.
std::vector<nccl_agreement::word> ask(std::vector<std::unique_ptr<nccl_agreement>>& all, std::mt19937& random) {
  std::vector<on_the_way> mail;
  std::vector<nccl_agreement::word> answers(all.size());
  std::size_t answered = 0;
  const auto go_on = [&](std::size_t rank) {
    for (const auto& each : all[rank]->go_on()) mail.push_back({static_cast<int>(rank), each});
    if (const auto answer = all[rank]->take_answer()) {
      answers[rank] = *answer;
      ++answered;
      CHECK_FALSE(all[rank]->take_answer());
      for (std::size_t other = 0; other != all.size(); ++other) CHECK_FALSE(all[rank]->needs(static_cast<int>(other)));
    }
  };
  for (std::size_t rank = 0; rank != all.size(); ++rank) go_on(rank);
  while (!mail.empty()) {
    const std::size_t at = random() % mail.size();
    const on_the_way next = mail[at];
    mail.erase(mail.begin() + static_cast<std::ptrdiff_t>(at));
    auto& to = *all[static_cast<std::size_t>(next.what.to)];
    CHECK(to.why_unexpected(next.from, next.what.tag).empty());
    CHECK(to.needs(next.from));
    const auto word = nccl_agreement::word::decode(next.what.what.encode());
    REQUIRE(word);
    to.take(next.what.tag, *word);
    CHECK(to.why_unexpected(next.from, next.what.tag) == "twice");
    go_on(static_cast<std::size_t>(next.what.to));
  }
  CHECK(answered == all.size());
  return answers;
}

TEST_CASE("nccl_agreement: every member learns whether all say yes, and the first one's number") {
  std::mt19937 random(7);
  for (int n = 1; n != 18; ++n) {
    CAPTURE(n);
    for (int no = -1; no != n; ++no) {
      std::vector<std::unique_ptr<nccl_agreement>> all;
      for (int rank = 0; rank != n; ++rank) {
        nccl_agreement::word own{.yes = rank != no, .never = rank == no && n % 2 == 0};
        if (rank == 0) own.id = id_of("the number");
        all.push_back(std::make_unique<nccl_agreement>(rank, n, own));
      }
      for (const auto& each : ask(all, random)) {
        CHECK(each.yes == (no == -1));
        CHECK(each.never == (no != -1 && n % 2 == 0));
        REQUIRE(each.id);
        CHECK(std::strcmp(each.id->bytes, "the number") == 0);
      }
      // Once more, with another answer.
      const int second = no == -1 ? n / 2 : -1;
      for (int rank = 0; rank != n; ++rank) all[static_cast<std::size_t>(rank)]->ask_again(rank != second);
      for (const auto& each : ask(all, random)) CHECK(each.yes == (second == -1));
    }
  }
}

TEST_CASE("nccl_agreement: words that no member sends are refused") {
  nccl_agreement one(1, 4, {.yes = true});
  CHECK(one.why_unexpected(0, 0).empty());   // round 0: from the one before
  CHECK(one.why_unexpected(3, 1).empty());   // round 1: two before
  CHECK(one.why_unexpected(0, 64).empty());  // the second question, of a faster member
  CHECK_FALSE(one.why_unexpected(2, 0).empty());
  CHECK_FALSE(one.why_unexpected(0, 2).empty());
  CHECK_FALSE(one.why_unexpected(0, 128).empty());
  CHECK_FALSE(one.why_unexpected(0, 0xffffffffU).empty());
  const auto of = [](std::int64_t count, int first, ferry::dtype type = ferry::dtype::u8) {
    const ferry::tensor bytes = ferry::zeros({count}, type);
    if (count != 0) std::memset(bytes.data(), first, 1);
    return nccl_agreement::word::decode(bytes);
  };
  CHECK_FALSE(of(0, 0));
  CHECK_FALSE(of(1, 4));
  CHECK_FALSE(of(2, 0));
  CHECK_FALSE(of(130, 0));
  CHECK_FALSE(of(1, 0, ferry::dtype::i64));
  CHECK_FALSE(of(129, 3));
  CHECK(of(129, 1));
  CHECK(of(1, 2));
}

}  // namespace nccl_agreement_test
