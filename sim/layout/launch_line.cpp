#include "layout/launch_line.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "base/json.h"
#include "layout/launch_text.h"
#include "layout/megatron_flags.h"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

constexpr std::uintmax_t kLargestFile = 256ULL << 20;  // a log with its dump

std::string read_text(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) throw InputError({file.string(), "", "is a folder", "a file"});
  const auto size = fs::file_size(file, error);
  if (!error && size > kLargestFile)
    throw InputError({file.string(), "", "is larger than 256 MiB", "a smaller file"});
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InputError({file.string(), "", "cannot be read", "a readable file"});
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Fills in the variables of one word.
class Filler {
 public:
  Filler(const Environment& first, const Environment& second) : first_(first), second_(second) {}

  std::string fill(const std::string& text, std::vector<std::string>& unknown, int depth = 0) const {
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] != '$' || at + 1 == text.size()) {
        result += text[at++];
      } else if (text[at + 1] == '(') {  // a command: never run
        unknown.push_back(text.substr(at));
        return result + text.substr(at);
      } else {
        const std::size_t end = end_of(text, at);
        if (end == at + 1) {
          result += text[at++];
          continue;
        }
        result += value_of(text.substr(at, end - at), unknown, depth);
        at = end;
      }
    }
    return result;
  }

 private:
  static constexpr int kDeepest = 10;  // variables that name variables

  static std::size_t end_of(const std::string& text, std::size_t at) {
    if (text[at + 1] == '{') {
      int depth = 0;
      for (std::size_t end = at + 1; end < text.size(); ++end) {
        if (text[end] == '{') ++depth;
        if (text[end] == '}' && --depth == 0) return end + 1;
      }
      return text.size();
    }
    std::size_t end = at + 1;
    while (end < text.size() && is_name(text[end])) ++end;
    return end;
  }

  // `reference` is ${NAME}, ${NAME:-default} or $NAME.
  std::string value_of(const std::string& reference, std::vector<std::string>& unknown, int depth) const {
    std::string name = reference.substr(1);
    std::optional<std::string> otherwise;
    if (name.starts_with("{")) {
      name = name.substr(1, name.size() - (name.ends_with("}") ? 2 : 1));
      const std::size_t dash = name.find('-');
      if (dash != std::string::npos) {
        otherwise = name.substr(dash + 1);
        name.resize(dash);
        if (name.ends_with(":")) name.pop_back();
      }
    }
    for (const Environment* environment : {&first_, &second_}) {
      const auto found = environment->find(name);
      if (found == environment->end() || depth >= kDeepest || found->second == reference) continue;
      return fill(found->second, unknown, depth + 1);
    }
    if (otherwise && depth < kDeepest) return fill(*otherwise, unknown, depth + 1);
    unknown.push_back(reference);
    return reference;
  }

  const Environment& first_;
  const Environment& second_;
};

// Quotes that a launcher would have taken off: "'([0]*3+[1]*58)'".
std::string unquoted(const std::string& word) {
  const bool pair = word.size() >= 2 && word.front() == word.back() && (word[0] == '\'' || word[0] == '"');
  return pair ? word.substr(1, word.size() - 2) : word;
}

class Reader {
 public:
  Reader(const RawLaunch& raw, std::string file, const Environment& environment)
      : raw_(raw), file_(std::move(file)), filler_(environment, raw.variables), environment_(environment) {}

  LaunchLine read() {
    for (const RawArgument& argument : raw_.arguments) take(argument);
    finish();
    throw_if_any(problems_);
    return std::move(line_);
  }

 private:
  void take(const RawArgument& raw) {
    std::vector<std::string> words;
    std::vector<std::string> unknown;
    for (const std::string& word : raw.words) words.push_back(unquoted(filler_.fill(word, unknown)));
    std::string name = raw.name;
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string shown = "--" + name + (words.empty() ? "" : fmt::format(" {}", fmt::join(words, " ")));
    const Flag* flag = find_flag(name);
    if (flag == nullptr) return other(name, shown, words);
    for (const std::string& variable : unknown)
      line_.unfilled.push_back(fmt::format("{} (--{})", variable, flag->name));
    const bool names_a_file = flag->field == "tokenizer_model";  // its last part is enough
    if (!unknown.empty() && !names_a_file) {
      line_.arguments.unfilled[std::string(flag->name)] = fmt::format("{}", fmt::join(words, " "));
      return;
    }
    if (words.size() == 1 && words[0] == "false" && !off(*flag, name)) return;
    if (is_switch(*flag) && words.size() == 1 && (words[0] == "true" || words[0] == "false")) words.clear();
    if (!is_switch(*flag) && words.size() == 1 && words[0].empty()) return;
    set(*flag, name, words, raw.place, shown);
  }

  // A switch given as its field's name with the value false: clears the field. True when that is the case.
  static bool off(const Flag& flag, const std::string& name) {
    return is_negative(flag) && name != flag.name;
  }

  void set(const Flag& flag, const std::string& name, const std::vector<std::string>& words,
           const std::string& place, const std::string& shown) {
    const bool positive = is_negative(flag) && name != flag.name;  // overlap_p2p_communication true
    if (positive && shown.ends_with(" false")) {
      set_flag(line_.arguments, flag, {});
    } else if (!positive) {
      const std::string allowed = set_flag(line_.arguments, flag, words);
      if (!allowed.empty()) {
        problems_.push_back({file_, place, shown, fmt::format("--{} takes {}", flag.name, allowed)});
        return;
      }
    }
    line_.arguments.unfilled.erase(std::string(flag.name));
    if (!raw_.dump || !is_default(flag)) line_.understood.push_back(shown);
  }

  bool is_default(const Flag& flag) const { return at_default(line_.arguments, flag); }

  // What has no field of its own.
  void other(const std::string& name, const std::string& shown, const std::vector<std::string>& words) {
    MegatronArguments& a = line_.arguments;
    const bool no = words.size() == 1 && (words[0] == "false" || words[0] == "None");
    if (name == "nnodes" || name == "nproc-per-node" || name == "node-rank" || name.starts_with("master-") ||
        name.starts_with("rdzv-"))
      return;
    if (name == "world-size") {
      if (words.size() == 1) a.world_size = number(words[0]);
    } else if (no) {
      return;
    } else if (name == "virtual-pipeline-model-parallel-size") {
      virtual_size_ = words.size() == 1 ? number(words[0]) : 0;
    } else if (name == "moe-enable-deepep") {
      a.moe_flex_dispatcher_backend = "deepep";
      line_.understood.push_back(shown);
    } else if (name == "recompute-activations") {
      a.recompute_granularity = "selective";
      line_.understood.push_back(shown);
    } else if (name == "external-cuda-graph" || name == "enable-cuda-graph") {
      a.cuda_graph_impl = name == "enable-cuda-graph" ? "local" : "transformer_engine";
      line_.understood.push_back(shown);
    } else if (has_no_effect(name)) {
      if (!raw_.dump) line_.without_effect.push_back(shown);
    } else if (!raw_.dump) {
      line_.unrecognised.push_back(shown);
    } else {
      ++line_.dumped;
    }
  }

  static std::int64_t number(const std::string& text) {
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && stop == text.data() + text.size() ? value : 0;
  }

  void finish() {
    MegatronArguments& a = line_.arguments;
    if (raw_.gpus > 0 && a.world_size == 0) a.world_size = raw_.gpus;
    if (virtual_size_ > 1 && a.pipeline_model_parallel_layout.empty() &&
        !a.num_layers_per_virtual_pipeline_stage && !a.num_virtual_stages_per_pipeline_rank)
      a.num_virtual_stages_per_pipeline_rank = virtual_size_;
    for (const Environment* environment : {&environment_, &raw_.variables}) {
      const auto found = environment->find("CUDA_DEVICE_MAX_CONNECTIONS");
      if (found == environment->end() || number(found->second) < 1) continue;
      a.cuda_device_max_connections = number(found->second);
      break;
    }
    if (line_.understood.empty() && line_.arguments.unfilled.empty() && problems_.empty())
      problems_.push_back({file_, "", "holds no Megatron arguments that are known here",
                           "a shell line, YAML (ARGS or MODEL_ARGS) or the arguments dump of a log"});
  }

  const RawLaunch& raw_;
  std::string file_;
  Filler filler_;
  const Environment& environment_;
  std::int64_t virtual_size_ = 0;
  LaunchLine line_;
  std::vector<Problem> problems_;
};

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return is_name(c) || c == '.' || c == '-' || c == '/' || c == ',' || c == ':' || c == '+' || c == '%';
  });
  if (plain) return word;
  if (word.find('$') != std::string::npos && word.find_first_of("\"\\`") == std::string::npos)
    return "\"" + word + "\"";  // a variable that the shell shall fill in
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

LaunchLine parse_launch_line(const std::string& text, const std::string& name,
                             const Environment& environment) {
  std::vector<Problem> problems;
  const RawLaunch raw = split_launch_text(text, name, problems);
  throw_if_any(problems);
  return Reader(raw, name, environment).read();
}

LaunchLine read_launch_line(const fs::path& file, const Environment& environment) {
  return parse_launch_line(read_text(file), file.string(), environment);
}

void add_environment(const std::string& file_or_assignment, Environment& environment) {
  const std::size_t equals = file_or_assignment.find('=');
  if (equals != std::string::npos && equals > 0 &&
      std::all_of(file_or_assignment.begin(),
                  file_or_assignment.begin() + static_cast<std::ptrdiff_t>(equals), is_name)) {
    environment[file_or_assignment.substr(0, equals)] = file_or_assignment.substr(equals + 1);
    return;
  }
  std::vector<Problem> problems;
  const RawLaunch raw = split_launch_text(read_text(file_or_assignment), file_or_assignment, problems);
  if (problems.empty() && raw.variables.empty())
    problems.push_back({file_or_assignment, "", "holds no assignment", "lines NAME=VALUE"});
  throw_if_any(problems);
  for (const auto& [variable, value] : raw.variables) environment[variable] = value;
}

namespace {

// Written even where Megatron's default would do: a reader looks for them.
bool always_written(const MegatronArguments& a, std::string_view flag) {
  constexpr std::string_view kSizes[] = {"tensor-model-parallel-size", "context-parallel-size",
                                         "pipeline-model-parallel-size", "micro-batch-size", "ckpt-format"};
  constexpr std::string_view kExperts[] = {"expert-model-parallel-size", "moe-router-topk",
                                           "moe-token-dispatcher-type"};
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), flag) != std::end(list);
  };
  if (flag == "moe-flex-dispatcher-backend") return a.moe_token_dispatcher_type == "flex";
  return in(kSizes) || (a.num_experts > 0 && in(kExperts));
}

}  // namespace

std::vector<FlagWords> launch_flags(const MegatronArguments& arguments) {
  std::vector<FlagWords> flags;
  for (const Flag& flag : megatron_flags()) {
    const auto open = arguments.unfilled.find(std::string(flag.name));
    if (open != arguments.unfilled.end()) {
      flags.push_back({"--" + std::string(flag.name), {open->second}});
    } else if (always_written(arguments, flag.name) || !at_default(arguments, flag)) {
      flags.push_back({"--" + std::string(flag.name), flag_words(arguments, flag)});
    }
  }
  return flags;
}

Environment launch_environment(const MegatronArguments& a) {
  Environment environment = {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"},
                             {"NCCL_NVLS_ENABLE", "0"}};
  if (a.cuda_device_max_connections)
    environment["CUDA_DEVICE_MAX_CONNECTIONS"] = std::to_string(*a.cuda_device_max_connections);
  if (a.fine_grained_activation_offloading) environment["NVTE_CPU_OFFLOAD_V1"] = "1";
  if (a.cuda_graph_impl == "transformer_engine") environment["NCCL_GRAPH_REGISTER"] = "0";
  return environment;
}

std::string shell_line(const MegatronArguments& arguments, std::int64_t gpus_per_node) {
  std::string text = "# Add data, tokenizer, learning rate and checkpoints.\n";
  for (const auto& [name, value] : launch_environment(arguments))
    text += fmt::format("export {}={}\n", name, quoted(value));
  const std::int64_t gpus = arguments.world_size;
  std::int64_t per_node = std::max<std::int64_t>(1, std::min(gpus, gpus_per_node));
  while (gpus % per_node != 0) --per_node;
  text += "torchrun";
  if (gpus > 0) text += fmt::format(" --nnodes {} --nproc-per-node {}", gpus / per_node, per_node);
  text += " pretrain_gpt.py";
  for (const FlagWords& flag : launch_flags(arguments)) {
    text += " \\\n  " + flag.flag;
    for (const std::string& word : flag.words) text += " " + quoted(word);
  }
  return text + "\n";
}

std::string yaml_file(const MegatronArguments& arguments) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "ENV_VARS" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, value] : launch_environment(arguments))
    out << YAML::Key << name << YAML::Value << YAML::SingleQuoted << value;
  out << YAML::EndMap << YAML::Key << "ARGS" << YAML::Value << YAML::BeginMap;
  for (const FlagWords& flag : launch_flags(arguments)) {
    out << YAML::Key << flag.flag << YAML::Value;
    if (flag.words.empty()) {
      out << true;
    } else if (flag.words.size() == 1) {
      out << flag.words[0];
    } else {
      out << YAML::BeginSeq;
      for (const std::string& word : flag.words) out << word;
      out << YAML::EndSeq;
    }
  }
  out << YAML::EndMap << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace stepcast
