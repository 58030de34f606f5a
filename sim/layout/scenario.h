// A scenario: what runs (model, batch, precision), where (cluster), and how (layout, sharding, recompute,
// overlap, software). Field names are the contract's. Reading it resolves every default, so that nothing
// downstream decides.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/problem.h"
#include "cost/stack.h"
#include "layout/stage_split.h"
#include "model/model.h"
#include "topology/topology.h"

namespace stepcast {

enum class Recipe { kFp32, kFp16, kBf16, kFp8Tensor, kFp8Block, kMxfp8, kNvfp4, kNvfp4Weights };
enum class Engine { kMegatron, kFsdp, kDeepSpeed };
enum class Granularity { kNone, kSelective, kFull };
enum class Dispatcher { kAllGather, kAllToAll, kDeepEp, kHybridEp, kNcclEp };
enum class CpComm { kP2p, kAllToAll, kAllGather, kAllToAllP2p };
enum class AttentionKernel { kAuto, kUnfused, kFlash2, kFlash3, kCudnn };
enum class CudaGraphs { kNone, kLayer, kFull };
enum class OptimizerKind { kAdam, kSgd, kMuon };
enum class RoutingKind { kBalanced, kZipf, kDirichlet, kHistogram };

struct Batch {
  std::int64_t seq_len = 0;
  std::int64_t global = 0;  // sequences
  std::int64_t micro = 0;
  std::vector<std::int64_t> lengths;  // of packed documents; empty = one document a sequence
};

struct Layout {
  std::int64_t tp = 1;
  std::int64_t cp = 1;
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::int64_t ep = 1;
  std::int64_t etp = 1;
  std::int64_t dp = 1;   // derived: gpus / (tp cp pp)
  std::int64_t edp = 1;  // derived: gpus / (etp ep pp)
  bool sequence_parallel = false;
  std::string schedule;               // resolved: never "auto"
  std::string stages;                 // Megatron layout string; empty = split automatically
  std::int64_t microbatch_group = 0;  // resolved: pp unless given
  CpComm cp_comm = CpComm::kP2p;
};

struct Precision {
  Recipe recipe = Recipe::kBf16;
  bool router_fp32 = true;
  bool fp8_params = false;
};

struct Sharding {
  int zero_stage = 1;
  bool node_scope = false;  // states are sharded within a node only
  Engine engine = Engine::kMegatron;
  std::int64_t instances = 1;  // of the distributed optimizer
};

struct Recompute {
  Granularity granularity = Granularity::kNone;
  std::vector<std::string> modules;           // of selective
  std::optional<std::int64_t> layers;         // of full: so many a pipeline chunk; absent = all
  bool has(const std::string& module) const;  // selective recompute of this module
};

struct Overlap {
  bool tp = false;
  bool grad_reduce = true;
  bool param_gather = true;
  bool moe_a2a = false;
  bool delay_wgrad = false;
  bool p2p = true;
  bool shared_expert = false;
};

struct Routing {
  RoutingKind kind = RoutingKind::kBalanced;
  double exponent = 0;  // zipf
  double alpha = 0;     // dirichlet
  std::uint64_t seed = 1;
  std::string file;  // histogram
};

struct MoeExecution {
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  Routing routing;
  std::optional<double> capacity_factor;
  bool pad_to_capacity = false;
  bool dedup = false;  // a token crosses to a node once; resolved from the dispatcher
};

struct Kernels {
  AttentionKernel attention = AttentionKernel::kAuto;
  bool fused_norm = true;
  CudaGraphs cuda_graphs = CudaGraphs::kNone;
};

struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdam;
  std::int64_t grad_bytes = 4;
  std::int64_t state_bytes = 4;  // of each moment
  bool onebit = false;
  double warmup_fraction = 0;
};

struct Offload {
  double optimizer_fraction = 0;
  std::vector<std::string> activations;
  double resident_expert_fraction = 1;
  bool prefetch = true;
};

struct Training {
  bool lora = false;  // else everything is trained
  std::int64_t rank = 0;
  std::vector<std::string> targets;
};

struct Software {
  std::string stack;
  std::string release;
  std::string date;  // YYYY-MM
};

struct Scenario {
  std::string file;    // for messages
  std::string prefix;  // of pointers into it
  std::string name;
  Model model;
  Cluster cluster;
  Batch batch;
  Layout layout;
  Precision precision;
  Sharding sharding;
  Recompute recompute;
  Overlap overlap;
  MoeExecution moe;
  Kernels kernels;
  Optimizer optimizer;
  Offload offload;
  Training training;
  Software software;
  Stack stack;  // of the software, by date

  std::shared_ptr<const Json> resolved;  // the scenario with every default filled in and the model inlined
  std::vector<std::string> assumptions;  // what was decided because the input did not say
  std::vector<std::string> warnings;

  std::int64_t microbatches() const { return batch.global / (batch.micro * layout.dp); }
  // Tokens of one micro-batch that one rank of a TP group holds together with its peers (s b / c).
  std::int64_t tokens_per_microbatch() const { return batch.seq_len * batch.micro / layout.cp; }
  double tokens_per_step() const {
    return static_cast<double>(batch.global) * static_cast<double>(batch.seq_len);
  }
  bool fp8() const {
    return precision.recipe == Recipe::kFp8Tensor || precision.recipe == Recipe::kFp8Block ||
           precision.recipe == Recipe::kMxfp8;
  }
};

// Reads a scenario file, applies `--set` assignments and resolves every default. Throws InputError with all
// problems: schema, ranges, and the framework's rules (layout/rules.h).
Scenario load_scenario(const std::filesystem::path& file, const std::vector<std::string>& assignments = {});

// A scenario that is right but asks for something this version does not simulate.
class NotSimulated : public InputError {
 public:
  using InputError::InputError;
};

// Throws NotSimulated, with everything found, when the scenario asks for something whose time is not
// simulated: refused rather than ignored. What a scenario may say is more (its layout and memory are known).
void require_simulated(const Scenario& scenario);

// Which layers each stage holds.
StageSplit split_of(const Scenario& scenario);

bool is_v_shaped(const std::string& schedule);

// The same for a scenario that is already JSON; `beside` is where its relative paths start, `file` and
// `prefix` name it in messages.
Scenario read_scenario(const Json& document, const std::string& file, const std::string& prefix,
                       const std::filesystem::path& beside);

}  // namespace stepcast
