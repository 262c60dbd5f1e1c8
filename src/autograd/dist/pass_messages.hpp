#pragma once

// What workers send each other about passes and contexts. Library methods, served whatever a worker serves.

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/serialize.hpp>

#include "message_set.hpp"

namespace ferry::inline v0::detail {

/// The same in all messages of a pass.
struct pass_header {
  std::uint64_t context = 0;
  std::uint64_t pass = 0;  ///< the root's worker in the top 16 bits
  bool exact = true;       ///< the messages in `reached` take part; otherwise all of the context
  bool keeps_graph = false;
  bool accumulates = true;  ///< gradients of leaves are kept
  message_set reached;
  std::vector<std::uint64_t> updaters;  ///< of registered updates: worker in the top 16 bits, number below

  template <class Archive>
  void serialize(Archive& archive) {
    archive(context, pass, exact, keeps_graph, accumulates, reached, updaters);
  }
};

/// The gradients of the tensors of one message, on their way back to its sender.
struct gradient_message {
  std::shared_ptr<const pass_header> header;
  std::uint64_t message = 0;
  /// One for each tensor of the message that requires a gradient; undefined: none arrived. Zeros are not sent.
  std::vector<tensor> gradients;

  template <class Archive>
  void save(Archive& archive) const {
    archive(*header, message, gradients);
  }
  template <class Archive>
  void load(Archive& archive) {
    auto own = std::make_shared<pass_header>();
    archive(*own, message, gradients);
    header = std::move(own);
  }
};

/// Why a pass ended: the first error; code 0 if well.
struct pass_failure {
  std::uint32_t code = 0;  ///< an errc
  std::string type;        ///< of an exception that is not ferry's; otherwise empty
  std::string text;

  /// `where` goes in front of the text.
  static pass_failure of(const std::exception_ptr& error, const std::string& where);
  [[nodiscard]] bool failed() const noexcept { return code != 0; }
  [[nodiscard]] std::exception_ptr exception() const;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(code, type, text);
  }
};

/// How a worker's part of a pass ended. What the part did last for the worker that waits for it travels with that.
struct pass_answer {
  /// What a gradient_message of its own would say.
  struct gradients_back {
    std::uint64_t message = 0;
    std::vector<tensor> gradients;

    template <class Archive>
    void serialize(Archive& archive) {
      archive(message, gradients);
    }
  };
  pass_failure how;
  /// Null: none. What takes them moves them out, so that they can be added to where they are.
  std::shared_ptr<std::vector<gradients_back>> back;

  template <class Archive>
  void save(Archive& archive) const {
    archive(how, back ? *back : std::vector<gradients_back>());
  }
  template <class Archive>
  void load(Archive& archive) {
    std::vector<gradients_back> own;
    archive(how, own);
    if (!own.empty()) back = std::make_shared<std::vector<gradients_back>>(std::move(own));
  }
};

struct failure_message {
  std::uint64_t context = 0;
  std::uint64_t pass = 0;
  bool floods = false;  ///< the receiver passes it on to the workers to which it has passed the context
  pass_failure failure;
  bool again = false;  ///< sent before and not answered: the answer does not wait for the receiver's part
  /// Floods from the root of the pass: the first answer of a worker comes when those that it has told have answered, so that the root's
  /// own come when all workers have been told.
  bool echoes = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(context, pass, floods, failure, again, echoes);
  }
};

struct release_message {
  std::uint64_t context = 0;
  /// All contexts of the same maker from the first one on, up to and without this one, are over, too.
  std::uint64_t first = 0;
  std::uint64_t oldest_kept = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(context, first, oldest_kept);
  }
};

/// The first message of a pass to a worker is answered when that worker's part of the pass is over, later ones at once.
future<pass_answer> serve_gradients(gradient_message&& arriving);
/// Answered when the part of this worker in the pass is over, at once the second time.
future<void> serve_failure(const failure_message& told);
void serve_release(const release_message& told);

}  // namespace ferry::inline v0::detail
