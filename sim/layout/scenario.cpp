#include "layout/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/data_folder.h"
#include "base/json.h"
#include "base/schema.h"
#include "layout/megatron_scenario.h"
#include "layout/nearest.h"
#include "layout/rule_helpers.h"
#include "layout/rules.h"
#include "layout/scenario_pointer.h"
#include "layout/scenario_read.h"
#include "layout/stage_split.h"
#include "model/hf_import.h"

namespace stepcast {
namespace fs = std::filesystem;

bool Recompute::has(const std::string& module) const {
  return granularity == Granularity::kSelective &&
         std::find(modules.begin(), modules.end(), module) != modules.end();
}

StageSplit split_of(const Scenario& s) {
  std::vector<Problem> problems;
  StageSplit split = split_stages(s.model, s.layout.pp, s.layout.vpp, is_v_shaped(s.layout.schedule),
                                  s.layout.stages, s.file, "/layout/stages", problems);
  throw_if_any(problems);
  return split;
}

bool is_v_shaped(const std::string& schedule) {
  return schedule == "zb-v" || schedule == "v-half" || schedule == "v-min" || schedule == "dualpipe-v";
}

namespace {

class Reader {
 public:
  Reader(const Json& document, std::string file, std::string prefix, const fs::path& beside)
      : document_(document), file_(std::move(file)), prefix_(std::move(prefix)), beside_(beside) {}

  Scenario read() {
    check_schema(document_, "scenario", file_, prefix_, problems_);
    throw_if_any(problems_);
    json_ = with_defaults(document_, "scenario");
    scenario_.file = file_;
    scenario_.prefix = prefix_;
    scenario_.name = json_["name"].get<std::string>();
    read_model_and_cluster();
    throw_if_any(problems_);
    read_software();
    read_simple_sections(json_, scenario_);
    read_layout();
    check_precision();
    check_free();
    throw_if_any(problems_);
    check_framework_rules();
    check_stages();
    throw_if_any(problems_);
    add_notes();
    echo();
    return std::move(scenario_);
  }

 private:
  void add(const std::string& pointer, std::string found, std::string allowed) {
    problems_.push_back({file_, prefix_ + pointer, std::move(found), std::move(allowed)});
  }

  void read_model_and_cluster() {
    const Json& model = json_["model"];
    if (model.is_object()) {
      read_model_object(model, file_, prefix_ + "/model");
    } else {
      try {
        const fs::path path =
            resolve_data(model.get<std::string>(), "scenarios/models", beside_, file_, prefix_ + "/model");
        read_model_object(load_json(path), path.string(), "");
      } catch (const InputError& error) {
        problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
      }
    }
    try {
      scenario_.cluster = read_cluster(json_["cluster"], file_, problems_, beside_, prefix_ + "/cluster");
      if (json_.contains("calibration"))
        scenario_.cluster.calibration = json_["calibration"].get<std::string>();
      if (scenario_.cluster.calibration.empty()) return;  // no cluster: reported already
      // a name stays a name; a path must hold from any folder
      const fs::path profile = resolve_data(scenario_.cluster.calibration, "calib/profiles", beside_, file_,
                                            prefix_ + "/calibration");
      if (profile != data_folder() / "calib" / "profiles" / (scenario_.cluster.calibration + ".json"))
        scenario_.cluster.calibration = fs::absolute(profile).lexically_normal().string();
    } catch (const InputError& error) {
      problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
    }
  }

  void read_model_object(const Json& object, const std::string& file, const std::string& prefix) {
    if (!is_hf_config(object)) {
      scenario_.model = read_model(object, file, prefix, problems_);
      return;
    }
    const HfImport import = import_hf(object, file, prefix);
    scenario_.model = read_model(import.model, file, prefix, problems_);
    for (const std::string& key : import.unrecognised)
      scenario_.assumptions.push_back("model file: key not recognised: " + key);
  }

  void read_layout() {
    const Json& given = json_["layout"];
    Layout& l = scenario_.layout;
    const std::int64_t gpus = scenario_.cluster.gpus;
    l.tp = given["tp"];
    l.cp = given["cp"];
    l.pp = given["pp"];
    l.vpp = given["vpp"];
    l.ep = given["ep"];
    l.etp = scenario_.model.moe ? given.value("etp", l.tp) : std::int64_t{1};
    if (given.contains("etp") && !scenario_.model.moe && given["etp"] != 1)
      scenario_.assumptions.emplace_back("layout.etp has no meaning without experts");
    l.sequence_parallel = given["sequence_parallel"];
    if (l.sequence_parallel && l.tp == 1) {
      l.sequence_parallel = false;
      scenario_.assumptions.emplace_back("sequence parallelism is off at TP 1");
    }
    l.stages = given.value("stages", std::string());
    l.cp_comm = enum_of<CpComm>(given["cp_comm"], kCpComms);
    l.dp = std::max<std::int64_t>(1, gpus / std::max<std::int64_t>(1, product({l.tp, l.cp, l.pp})));
    l.edp = std::max<std::int64_t>(1, gpus / std::max<std::int64_t>(1, product({l.etp, l.ep, l.pp})));
    read_schedule(given);
    for (const auto& [key, derived] : {std::pair{"dp", l.dp}, std::pair{"edp", l.edp}}) {
      if (given.contains(key) && given[key] != derived)
        add(fmt::format("/layout/{}", key),
            fmt::format("{} does not follow from the other sizes", text_of(given[key])),
            fmt::format("{}, or leave it out", derived));
    }
  }

  void read_schedule(const Json& given) {
    Layout& l = scenario_.layout;
    l.schedule = given["schedule"];
    if (!l.stages.empty()) {
      const auto symbols = expand_layout_string(l.stages, file_, prefix_ + "/layout/stages", problems_);
      const auto stages = static_cast<std::int64_t>(symbols.size());
      const bool vpp_given = document_.contains("layout") && document_["layout"].contains("vpp") &&
                             !document_["layout"]["vpp"].is_null();
      if (!vpp_given && stages % l.pp == 0 && stages > 0) l.vpp = stages / l.pp;
    }
    if (l.schedule == "auto") l.schedule = l.vpp > 1 ? "interleaved" : "1f1b";
    if (is_v_shaped(l.schedule)) {
      if (l.vpp > 2)
        add("/layout/vpp", fmt::format("{} with schedule {}", l.vpp, l.schedule),
            "1 or 2 (always two chunks a rank)");
      l.vpp = 2;
    } else if (l.vpp > 1 && l.schedule != "interleaved" && l.schedule != "bfs") {
      add("/layout/vpp", fmt::format("{} with schedule {}", l.vpp, l.schedule),
          "1, or schedule interleaved or bfs");
    }
    if (l.schedule == "interleaved" && l.vpp == 1)
      add("/layout/schedule", "interleaved with vpp 1", "vpp above 1, or schedule 1f1b");
    l.microbatch_group = given.value("microbatch_group", l.pp);
  }

  void read_software() {
    const Json& given = json_["software"];
    scenario_.software = {given["stack"], given.value("release", std::string()),
                          given.value("date", std::string())};
    const bool fsdp_like = json_["sharding"]["engine"] == "fsdp";
    scenario_.stack =
        find_stack(scenario_.software.stack, scenario_.software.date, fsdp_like, scenario_.assumptions);
  }

  void check_precision() {
    const Gpu& gpu = scenario_.cluster.gpu;
    const std::string recipe = json_["precision"]["recipe"];
    const auto refuse = [&](const std::string& needs, const std::string& allowed) {
      add("/precision/recipe", fmt::format("{} on {}: {}", recipe, gpu.kind, needs), allowed);
    };
    const std::string low =
        gpu.fp8_flops > 0 ? "fp32, fp16, bf16, fp8-tensor, fp8-block" : "fp32, fp16, bf16";
    switch (scenario_.precision.recipe) {
      case Recipe::kFp8Tensor:
      case Recipe::kFp8Block:
        if (gpu.fp8_flops <= 0) refuse("no FP8 tensor cores", low);
        if (scenario_.precision.recipe == Recipe::kFp8Block && gpu.compute_capability >= 10)
          scenario_.warnings.emplace_back("fp8-block on Blackwell is emulated with MXFP8");
        break;
      case Recipe::kMxfp8:
        if (gpu.compute_capability < 10) refuse("MXFP8 is Blackwell only", low);
        break;
      case Recipe::kNvfp4:
        if (gpu.fp4_flops <= 0)
          refuse("NVFP4 needs FP4 tensor cores (SM100 or newer)", low + ", nvfp4-weights");
        break;
      case Recipe::kNvfp4Weights:
        if (gpu.fp4_flops <= 0)
          scenario_.warnings.emplace_back(
              "nvfp4-weights is emulated here: weights are decoded to BF16 in the kernel");
        break;
      default:
        break;
    }
  }

  // `free`: pointers of keys, each with null or a list of values.
  void check_free() {
    for (const auto& [pointer, values] : json_["free"].items()) {
      const std::string at = child_pointer("/free", pointer);
      if (!schema_has("scenario", pointer))
        add(at, "is no key of a scenario", "a JSON pointer such as /layout/tp");
      if (!values.is_null() && (!values.is_array() || values.empty()))
        add(at, text_of(values), "null (every legal value) or a list of values");
    }
    if (scenario_.moe.routing.kind == RoutingKind::kZipf && !json_["moe"]["routing"].contains("s"))
      add("/moe/routing/s", "missing", "the exponent of zipf, a number from 0 to 10");
  }

  void add_notes() {
    const Scenario& s = scenario_;
    const auto note = [&](bool holds, const char* text) {
      if (holds) scenario_.assumptions.emplace_back(text);
    };
    note(json_["disturbances"]["jitter"] == true,
         "jitter over ranks is not modelled yet: all GPUs are equally fast");
    note(s.moe.dispatcher == Dispatcher::kNcclEp, "dispatcher ncclep runs at HybridEP's rates");
    note(s.moe.routing.kind == RoutingKind::kZipf,
         "zipf routing: the hottest experts share a rank in every layer");
    note(s.offload.optimizer_fraction > 0,
         "the host's share of the optimizer step takes no longer than its copies");
    note(s.precision.recipe == Recipe::kFp32, "FP32 GEMMs run as TF32");
    note(s.layout.pp > 1 && s.layout.vpp == 1,
         "pipeline sends are exposed: they overlap only with interleaved chunks");
    note(s.precision.recipe != Recipe::kBf16 && s.precision.recipe != Recipe::kFp16 &&
             s.precision.recipe != Recipe::kFp32,
         "router, attention core, embedding and output matrix stay in 16 or 32 bit");
  }

  void check_framework_rules() {
    const MegatronArguments arguments = megatron_arguments(scenario_);
    for (const Violation& v : check_rules(arguments))
      add(scenario_pointer(v.option), fmt::format("{} (rule {})", v.found, v.rule), v.allowed);
    if (problems_.empty()) return;
    std::vector<std::string> hints;
    const std::string nearest = nearest_legal_text(arguments);
    if (!nearest.empty()) hints.push_back("nearest legal layouts: " + nearest);
    throw InputError(problems_, hints);
  }

  void check_stages() {
    const Layout& l = scenario_.layout;
    if (!problems_.empty()) return;
    const StageSplit split = split_stages(scenario_.model, l.pp, l.vpp, is_v_shaped(l.schedule), l.stages,
                                          file_, prefix_ + "/layout/stages", problems_);
    if (l.stages.empty() && l.pp > 1)
      scenario_.assumptions.push_back("layers over pipeline stages: " + split.how);
  }

  void echo() {
    const Layout& l = scenario_.layout;
    Json& layout = json_["layout"];
    json_["overlap"]["param_gather"] = scenario_.overlap.param_gather;
    layout["etp"] = l.etp;
    layout["dp"] = l.dp;
    layout["edp"] = l.edp;
    layout["vpp"] = l.vpp;
    layout["sequence_parallel"] = l.sequence_parallel;
    layout["schedule"] = l.schedule;
    layout["microbatch_group"] = l.microbatch_group;
    json_["model"] = model_json(scenario_.model);
    json_["cluster"] = cluster_json(scenario_.cluster);
    json_["calibration"] = scenario_.cluster.calibration;
    json_["moe"]["dedup"] = scenario_.moe.dedup;
    json_["recompute"]["modules"] = scenario_.recompute.modules;
    json_["precision"]["fp8_params"] = scenario_.precision.fp8_params;
    json_["optimizer"]["grad_dtype"] =
        name_of_bytes(scenario_.optimizer.grad_bytes, scenario_.precision.recipe);
    if (!json_["free"].empty()) scenario_.assumptions.emplace_back("`free` is used by search only");
    scenario_.resolved =
        std::make_shared<const Json>(with_defaults(json_, "scenario"));  // in the schema's order
  }

  const Json& document_;
  std::string file_;
  std::string prefix_;
  fs::path beside_;
  Json json_;
  Scenario scenario_;
  std::vector<Problem> problems_;
};

}  // namespace

namespace {

// A model given by path is inlined when an assignment reaches into it.
void inline_model(Json& document, const fs::path& file, const std::vector<std::string>& assignments) {
  const bool reaches = std::any_of(assignments.begin(), assignments.end(),
                                   [](const std::string& a) { return a.rfind("/model/", 0) == 0; });
  if (!reaches || !document.is_object() || !document.contains("model") || !document["model"].is_string())
    return;
  const Json model = load_json(resolve_data(document["model"].get<std::string>(), "scenarios/models",
                                            file.parent_path(), file.string(), "/model"));
  document["model"] = is_hf_config(model) ? import_hf(model, file.string()).model : model;
}

}  // namespace

Scenario load_scenario(const fs::path& file, const std::vector<std::string>& assignments) {
  Json document = load_json(file);
  std::vector<Problem> problems;
  inline_model(document, file, assignments);
  for (const std::string& assignment : assignments) {
    try {
      apply_set(document, assignment);
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  throw_if_any(problems);
  return read_scenario(document, file.string(), "", file.parent_path());
}

Scenario read_scenario(const Json& document, const std::string& file, const std::string& prefix,
                       const fs::path& beside) {
  return Reader(document, file, prefix, beside).read();
}

}  // namespace stepcast
