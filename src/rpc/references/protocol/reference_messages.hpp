#pragma once

// Reference control messages between workers: batches of the controls of reference_protocol, sent as a call that every
// worker serves.

#include <cstdint>
#include <vector>

#include <ferry/wire/serialize.hpp>

#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

template <class Archive>
void serialize(Archive& archive, peer_incarnation& peer) {
  archive(peer.id.value, peer.incarnation.value);
}
template <class Archive>
void serialize(Archive& archive, object_id& object) {
  archive(object.owner, object.creator, object.number);
}
template <class Archive>
void serialize(Archive& archive, fork_key& key) {
  archive(key.by, key.number);
}
template <class Archive>
void serialize(Archive& archive, reference_control& control) {
  archive(control.what, control.object, control.key, control.number);
}

struct reference_batch {
  incarnation_id from;  ///< the sender's incarnation
  incarnation_id to;    ///< the incarnation that the batch is for
  std::vector<reference_control> controls;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(from.value, to.value, controls);
  }
};

/// One answer per control. Empty if the addressed incarnation has ended.
struct reference_answers {
  std::vector<reference_answer> answers;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(answers);
  }
};

/// The method "ferry/references". Runs on the reading thread and never blocks.
reference_answers serve_references(const reference_batch& batch);

}  // namespace ferry::inline v0::detail
