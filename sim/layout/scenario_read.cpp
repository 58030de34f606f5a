#include "layout/scenario_read.h"

#include <limits>

namespace stepcast {
namespace {

constexpr std::array kRecipes = {EnumName<Recipe>{"fp32", Recipe::kFp32},
                                 EnumName<Recipe>{"fp16", Recipe::kFp16},
                                 EnumName<Recipe>{"bf16", Recipe::kBf16},
                                 EnumName<Recipe>{"fp8-tensor", Recipe::kFp8Tensor},
                                 EnumName<Recipe>{"fp8-block", Recipe::kFp8Block},
                                 EnumName<Recipe>{"mxfp8", Recipe::kMxfp8},
                                 EnumName<Recipe>{"nvfp4", Recipe::kNvfp4},
                                 EnumName<Recipe>{"nvfp4-weights", Recipe::kNvfp4Weights}};
constexpr std::array kEngines = {EnumName<Engine>{"megatron", Engine::kMegatron},
                                 EnumName<Engine>{"fsdp", Engine::kFsdp},
                                 EnumName<Engine>{"deepspeed", Engine::kDeepSpeed}};
constexpr std::array kGranularities = {EnumName<Granularity>{"none", Granularity::kNone},
                                       EnumName<Granularity>{"selective", Granularity::kSelective},
                                       EnumName<Granularity>{"full", Granularity::kFull}};
constexpr std::array kDispatchers = {EnumName<Dispatcher>{"allgather", Dispatcher::kAllGather},
                                     EnumName<Dispatcher>{"alltoall", Dispatcher::kAllToAll},
                                     EnumName<Dispatcher>{"deepep", Dispatcher::kDeepEp},
                                     EnumName<Dispatcher>{"hybridep", Dispatcher::kHybridEp},
                                     EnumName<Dispatcher>{"ncclep", Dispatcher::kNcclEp}};
constexpr std::array kRoutings = {EnumName<RoutingKind>{"balanced", RoutingKind::kBalanced},
                                  EnumName<RoutingKind>{"zipf", RoutingKind::kZipf},
                                  EnumName<RoutingKind>{"dirichlet", RoutingKind::kDirichlet},
                                  EnumName<RoutingKind>{"histogram", RoutingKind::kHistogram}};
constexpr std::array kAttentions = {EnumName<AttentionKernel>{"auto", AttentionKernel::kAuto},
                                    EnumName<AttentionKernel>{"unfused", AttentionKernel::kUnfused},
                                    EnumName<AttentionKernel>{"flash2", AttentionKernel::kFlash2},
                                    EnumName<AttentionKernel>{"flash3", AttentionKernel::kFlash3},
                                    EnumName<AttentionKernel>{"cudnn", AttentionKernel::kCudnn}};
constexpr std::array kGraphs = {EnumName<CudaGraphs>{"none", CudaGraphs::kNone},
                                EnumName<CudaGraphs>{"layer", CudaGraphs::kLayer},
                                EnumName<CudaGraphs>{"full", CudaGraphs::kFull}};
constexpr std::array kOptimizers = {EnumName<OptimizerKind>{"adam", OptimizerKind::kAdam},
                                    EnumName<OptimizerKind>{"sgd", OptimizerKind::kSgd},
                                    EnumName<OptimizerKind>{"muon", OptimizerKind::kMuon}};

std::int64_t bytes_of(const std::string& dtype) {
  if (dtype == "fp32") return 4;
  return dtype == "fp8" ? 1 : 2;
}

void read_moe(const Json& given, MoeExecution& moe) {
  moe.dispatcher = enum_of<Dispatcher>(given["dispatcher"], kDispatchers);
  const Json& routing = given["routing"];
  moe.routing.kind = enum_of<RoutingKind>(routing["kind"], kRoutings);
  moe.routing.exponent = routing.value("s", 0.0);
  moe.routing.alpha = routing.value("alpha", 1.0);
  moe.routing.seed = routing.value("seed", std::uint64_t{1});
  moe.routing.file = routing.value("file", std::string());
  if (given.contains("capacity_factor")) moe.capacity_factor = given["capacity_factor"].get<double>();
  moe.pad_to_capacity = given["pad_to_capacity"];
  const bool dedups = moe.dispatcher != Dispatcher::kAllGather && moe.dispatcher != Dispatcher::kAllToAll;
  moe.dedup = given.value("dedup", dedups);
}

}  // namespace

std::string name_of_bytes(std::int64_t bytes, Recipe recipe) {
  if (bytes == 4) return "fp32";
  if (bytes == 1) return "fp8";
  return recipe == Recipe::kFp16 ? "fp16" : "bf16";
}

void read_simple_sections(const Json& document, Scenario& scenario) {
  const Json& j = document;
  Scenario& s = scenario;
  const Json& batch = j["batch"];
  s.batch.seq_len = batch["seq_len"];
  s.batch.global = batch["global"];
  s.batch.micro = batch["micro"];
  if (batch.contains("lengths")) s.batch.lengths = batch["lengths"].get<std::vector<std::int64_t>>();

  s.precision.recipe = enum_of<Recipe>(j["precision"]["recipe"], kRecipes);
  s.precision.router_fp32 = j["precision"]["router"] == "fp32";
  s.precision.fp8_params = j["precision"].value("fp8_params", s.stack.fp8_params && s.fp8());

  const Json& sharding = j["sharding"];
  s.sharding = {sharding["zero_stage"].get<int>(), sharding["scope"] == "node",
                enum_of<Engine>(sharding["engine"], kEngines), sharding["instances"].get<std::int64_t>()};

  const Json& recompute = j["recompute"];
  s.recompute.granularity = enum_of<Granularity>(recompute["granularity"], kGranularities);
  s.recompute.modules = recompute["modules"].get<std::vector<std::string>>();
  if (s.recompute.granularity == Granularity::kSelective && s.recompute.modules.empty())
    s.recompute.modules = {"core_attn"};  // Megatron's default for selective
  if (recompute.contains("layers")) s.recompute.layers = recompute["layers"].get<std::int64_t>();

  const Json& overlap = j["overlap"];
  const bool gathers = overlap["grad_reduce"].get<bool>() && j["sharding"]["zero_stage"].get<int>() >= 1;
  s.overlap = {overlap["tp"],           overlap["grad_reduce"], overlap.value("param_gather", gathers),
               overlap["moe_a2a"],      overlap["delay_wgrad"], overlap["p2p"],
               overlap["shared_expert"]};
  read_moe(j["moe"], s.moe);

  s.kernels.attention = enum_of<AttentionKernel>(j["kernels"]["attention"], kAttentions);
  s.kernels.fused_norm = j["kernels"]["fused_norm"];
  s.kernels.cuda_graphs = enum_of<CudaGraphs>(j["kernels"]["cuda_graphs"], kGraphs);

  const Json& optimizer = j["optimizer"];
  s.optimizer.kind = enum_of<OptimizerKind>(optimizer["kind"], kOptimizers);
  // Megatron reduces gradients in FP32 with bf16 and in the model's format with fp16; recipes of some stacks
  // choose bf16.
  std::string grads = s.stack.grad_dtype.empty() ? "fp32" : s.stack.grad_dtype;
  if (s.precision.recipe == Recipe::kFp16) grads = "fp16";
  if (s.precision.recipe == Recipe::kFp32) grads = "fp32";
  s.optimizer.grad_bytes = bytes_of(optimizer.value("grad_dtype", grads));
  s.optimizer.state_bytes = bytes_of(optimizer["state_dtype"]);
  s.optimizer.onebit = optimizer["compression"] == "1bit-adam";
  s.optimizer.warmup_fraction = optimizer["warmup_fraction"];

  const Json& offload = j["offload"];
  s.offload.optimizer_fraction = offload["optimizer_fraction"];
  s.offload.activations = offload["activations"].get<std::vector<std::string>>();
  s.offload.resident_expert_fraction = offload["experts"]["resident_fraction"];
  s.offload.prefetch = offload["experts"]["prefetch"];

  const Json& training = j["training"];
  s.training.lora = training["kind"] == "lora";
  s.training.rank = training.value("rank", std::int64_t{0});
  s.training.targets = training.value("targets", std::vector<std::string>());
}

}  // namespace stepcast
