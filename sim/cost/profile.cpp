#include "cost/profile.h"

#include <array>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "base/schema.h"
#include "base/sha256.h"

namespace stepcast {
namespace {

// The file's name of each Dtype. FP32 GEMMs of training run as TF32 (PyTorch's default for Megatron).
constexpr std::array kDtypes = {"tf32", "fp16", "bf16", "fp8_tensor", "fp8_block", "mxfp8", "nvfp4"};
constexpr std::array kVariants = {"flash1", "flash2", "flash3", "cudnn"};
constexpr std::array kHeads = {"64", "128", "256", "mla"};
constexpr std::array kMemoryKinds = {"elementwise_bytes_per_s", "norm_bytes_per_s", "permute_bytes_per_s",
                                     "quantise_bytes_per_s", "optimizer_bytes_per_s"};

GemmRate read_gemm(const Json& j) {
  GemmRate r;
  r.present = true;
  r.flops_per_s = j["flops_per_s"];
  r.k_half = j["k_half"];
  r.launch_s = j["launch_s"];
  r.hbm_bytes_per_s = j["hbm_bytes_per_s"];
  r.tile_m = j["tile_m"];
  r.tile_n = j["tile_n"];
  r.wave_exponent = j["wave_exponent"];
  r.operand_bytes = j["operand_bytes_per_element"];
  r.result_bytes = j["result_bytes_per_element"];
  r.dgrad_factor = j["dgrad_factor"];
  r.wgrad_factor = j["wgrad_factor"];
  r.status = j["status"];
  return r;
}

// Rates divide.
double positive(const Json& j, const std::string& pointer) {
  const double value = j.at(Json::json_pointer(pointer)).get<double>();
  if (!(value > 0))
    throw InputError({"", pointer, j.at(Json::json_pointer(pointer)).dump(), "a number above 0"});
  return value;
}

// FP32 runs as TF32 where the GPU has it, else as FP32; a format without units of its own is absent.
const Json* rate_of(const Json& family, const std::string& dtype) {
  if (family.contains(dtype)) return &family[dtype];
  if (dtype == "tf32" && family.contains("fp32")) return &family["fp32"];
  if (dtype == "fp16" && family.contains("bf16")) return &family["bf16"];
  return nullptr;
}

AttentionRate read_attention(const Json& j) {
  return {j["fwd_flops_per_s"], j["seq_half"], j["launch_s"], j["bwd_rate_factor"], j["status"]};
}

std::vector<LinkLine> read_lines(const Json& intra, const char* op) {
  std::vector<LinkLine> lines;
  for (const Json& line : intra[op]["lines"])
    lines.push_back({line["base_s"], line["per_step_s"], line["bus_bytes_per_s"], line["min_gpus"]});
  return lines;
}

DispatchRate read_dispatch(const Json& j) {
  DispatchRate r;
  r.launch_s = j["launch_s"];
  r.nvlink_bytes_per_s = j["nvlink_bytes_per_s"];
  r.nvlink_large_domain_bytes_per_s = j.value("nvlink_large_domain_bytes_per_s", r.nvlink_bytes_per_s);
  r.internode_launch_s = j.value("internode_launch_s", r.launch_s);
  r.token_copies = j.value("token_copies", 0.0);
  r.message_bytes = j.value("message_bytes", 0.0);
  r.sm_bytes_per_s = j.value("sm_bytes_per_s", 0.0);
  r.internode_sm_bytes_per_s = j.value("internode_sm_bytes_per_s", r.sm_bytes_per_s);
  r.nic_efficiency = j["nic_efficiency"];
  r.notify_s = j.value("notify_s", 0.0);
  return r;
}

Communication read_communication(const Json& j) {
  Communication c;
  const Json& intra = j["intra_domain"];
  c.all_reduce = read_lines(intra, "all_reduce");
  c.all_gather = read_lines(intra, "all_gather");
  c.reduce_scatter = read_lines(intra, "reduce_scatter");
  c.all_to_all = read_lines(intra, "alltoall");
  c.send_recv = read_lines(intra, "sendrecv");
  const Json& inter = j["inter_node"];
  c.nic_efficiency = positive(j, "/inter_node/nic_efficiency/value");
  c.rdma_latency_s = inter["rdma_latency_s"]["value"];
  c.switch_hop_s = inter["switch_hop_s"]["value"];
  c.ring_base_s = inter["nccl_base_s"]["ring"]["simple"];
  c.ring_hop_s = inter["nccl_hop_s"]["ring"]["simple"];
  c.tree_base_s = inter["nccl_base_s"]["tree"]["simple"];
  c.tree_hop_s = inter["nccl_hop_s"]["tree"]["simple"];
  c.all_to_all_peer_s = inter["alltoall_peer_s"]["value"];
  c.deepep_sms = j["deepep"]["sms"];
  c.deepep_dispatch = read_dispatch(j["deepep"]["dispatch"]);
  c.deepep_combine = read_dispatch(j["deepep"]["combine"]);
  c.hybridep_dispatch = read_dispatch(j["hybridep"]["dispatch"]);
  c.hybridep_combine = read_dispatch(j["hybridep"]["combine"]);
  return c;
}

void read_attention_variants(const Json& j, Profile& p) {
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    for (std::size_t h = 0; h < kHeads.size(); ++h)
      p.attention[v][h] = read_attention(j[kVariants[v]][kHeads[h]]);
    if (j["auto"] == kVariants[v]) p.auto_attention = static_cast<AttentionVariant>(v);
  }
}

}  // namespace

Profile load_profile(const std::filesystem::path& file) {
  const Json j = load_json(file);
  std::vector<Problem> problems;
  check_schema(j, "profile", file.string(), "", problems);
  throw_if_any(problems);
  try {
    Profile p;
    p.name = j["name"];
    p.kind = j["kind"];
    std::ifstream stream(file, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    p.sha256 = sha256(text.str());
    p.sms = j["device"]["sms"];
    p.nvlink_bytes_per_s =
        j["device"]["nvlink_bytes_per_s"].is_number() ? j["device"]["nvlink_bytes_per_s"].get<double>() : 0;
    p.hbm_bytes_per_s = j["device"]["hbm_bytes_per_s"];
    p.host_link_bytes_per_s =
        j["host_link"]["h2d_bytes_per_s"].get<double>() / j["host_link"]["h2d_efficiency"].get<double>();
    for (std::size_t d = 0; d < kDtypes.size(); ++d) {
      if (const Json* rate = rate_of(j["gemm"], kDtypes[d])) p.gemm[d] = read_gemm(*rate);
      if (const Json* rate = rate_of(j["grouped_gemm"], kDtypes[d])) p.grouped_gemm[d] = read_gemm(*rate);
    }
    read_attention_variants(j["attention"], p);
    p.memory_launch_s = j["memory"]["launch_s"]["value"];
    for (std::size_t k = 0; k < kMemoryKinds.size(); ++k)
      p.memory_bytes_per_s[k] = positive(j, std::string("/memory/") + kMemoryKinds[k] + "/value");
    p.memory_bytes_per_s[static_cast<std::size_t>(MemoryKind::kHostCopy)] = j["host_link"]["h2d_bytes_per_s"];
    p.sustained_clock = positive(j, "/sustained_clock/value");
    p.communication = read_communication(j["communication"]);
    return p;
  } catch (const InputError& error) {
    Problem problem = error.problems().front();
    problem.file = file.string();
    throw InputError(problem);
  } catch (const Json::exception& error) {
    throw InputError({file.string(), "", std::string("incomplete profile: ") + error.what(),
                      "the keys of the shipped profiles"});
  }
}

Profile with_bandwidth(Profile p, double hbm_bytes_per_s, double host_link_bytes_per_s) {
  const double hbm = hbm_bytes_per_s / p.hbm_bytes_per_s;
  for (auto* family : {&p.gemm, &p.grouped_gemm})
    for (GemmRate& rate : *family) rate.hbm_bytes_per_s *= hbm;
  const double host = host_link_bytes_per_s / p.host_link_bytes_per_s;
  for (std::size_t k = 0; k < p.memory_bytes_per_s.size(); ++k)
    p.memory_bytes_per_s[k] *= k == static_cast<std::size_t>(MemoryKind::kHostCopy) ? host : hbm;
  return p;
}

}  // namespace stepcast
