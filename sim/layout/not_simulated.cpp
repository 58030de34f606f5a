#include <fmt/format.h>

#include "base/json.h"
#include "layout/scenario.h"

namespace stepcast {
namespace {

class Finder {
 public:
  explicit Finder(const Scenario& scenario) : s_(scenario) {}

  std::vector<Problem> find() {
    layout();
    training();
    offload();
    moe();
    disturbances();
    return std::move(missing_);
  }

 private:
  void need(bool asked, const std::string& pointer, const std::string& what, const std::string& allowed) {
    if (asked) missing_.push_back({s_.file, s_.prefix + pointer, what + " is not simulated yet", allowed});
  }

  void layout() {
    const std::string& schedule = s_.layout.schedule;
    need(schedule != "1f1b" && schedule != "interleaved" && schedule != "gpipe", "/layout/schedule",
         "schedule " + schedule, "1f1b, interleaved, gpipe, auto");
    need(s_.layout.cp_comm == CpComm::kAllToAllP2p && s_.layout.cp > 1, "/layout/cp_comm", "a2a+p2p",
         "p2p, a2a, allgather");
    need(s_.kernels.attention == AttentionKernel::kUnfused && s_.layout.cp > 1, "/kernels/attention",
         "unfused attention under context parallelism", "auto, flash2, flash3, cudnn");
  }

  void training() {
    need(s_.training.lora, "/training/kind", "lora", "pretrain");
    need(s_.optimizer.onebit, "/optimizer/compression", "1bit-adam", "none");
    need(s_.optimizer.kind == OptimizerKind::kMuon, "/optimizer/kind", "muon", "adam, sgd");
    need(s_.sharding.instances > 1, "/sharding/instances",
         "more than one instance of the distributed optimizer", "1");
    need(!s_.batch.lengths.empty(), "/batch/lengths", "packed data", "leave it out");
    need(s_.model.vision.has_value(), "/model/vision", "a vision encoder's step", "leave it out");
  }

  void offload() {
    need(!s_.offload.activations.empty(), "/offload/activations", "activation offload", "[]");
    need(s_.offload.resident_expert_fraction < 1, "/offload/experts/resident_fraction", "expert offload",
         "1");
  }

  void moe() {
    const RoutingKind kind = s_.moe.routing.kind;
    need(kind == RoutingKind::kHistogram, "/moe/routing/kind", "histogram routing", "balanced, zipf");
    need(kind == RoutingKind::kDirichlet, "/moe/routing/kind", "dirichlet routing", "balanced, zipf");
  }

  void disturbances() {
    if (!s_.resolved) return;  // built without a document: nothing is disturbed
    for (const char* key : {"slow_gpus", "slow_links", "failed_nics"})
      need(!(*s_.resolved)["disturbances"][key].empty(), fmt::format("/disturbances/{}", key), key, "[]");
  }

  const Scenario& s_;
  std::vector<Problem> missing_;
};

}  // namespace

void require_simulated(const Scenario& scenario) {
  const std::vector<Problem> missing = Finder(scenario).find();
  if (!missing.empty()) throw NotSimulated(missing);
}

}  // namespace stepcast
