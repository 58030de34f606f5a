#include "layout/launch_text.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <regex>
#include <sstream>

namespace stepcast {
namespace {

constexpr std::size_t kLongestLine = 20'000;  // regular expressions recurse: longer lines are no dump

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::move(line));
  }
  return lines;
}

// ---- the dump in a log: "  num_layers ........................ 61", perhaps behind "[0]: " or a time

// name, value
std::optional<std::pair<std::string, std::string>> dump_line(const std::string& line) {
  static const std::regex pattern(R"(^.{0,80}?\s([A-Za-z][A-Za-z0-9_]*) \.{2,} (.*)$)");
  std::smatch match;
  if (line.size() > kLongestLine || line.find(" .. ") == std::string::npos) {
    if (line.size() > kLongestLine || line.find("...") == std::string::npos) return std::nullopt;
  }
  const std::string padded = " " + line;
  if (!std::regex_match(padded, match, pattern)) return std::nullopt;
  return std::pair(match[1].str(), match[2].str());
}

bool is_dump(const std::vector<std::string>& lines) {
  return std::count_if(lines.begin(), lines.end(), [](const auto& line) { return dump_line(line); }) >= 3;
}

// torch.bfloat16 -> bf16, AttnBackend.auto -> auto
std::string plain_value(const std::string& value) {
  static const std::map<std::string, std::string> types = {
      {"torch.float32", "fp32"}, {"torch.float", "fp32"}, {"torch.bfloat16", "bf16"},
      {"torch.float16", "fp16"}, {"torch.half", "fp16"},  {"torch.uint8", "fp8"}};
  const auto type = types.find(value);
  if (type != types.end()) return type->second;
  static const std::regex enumerator(R"(^<?[A-Z][A-Za-z]*\.([A-Za-z_0-9]+).*$)");
  std::smatch match;
  if (value.size() < 100 && std::regex_match(value, match, enumerator)) return match[1].str();
  return value;
}

RawLaunch split_dump(const std::vector<std::string>& lines) {
  RawLaunch launch;
  launch.dump = true;
  std::size_t number = 0;
  for (const std::string& line : lines) {
    ++number;
    const auto found = dump_line(line);
    if (!found) continue;
    std::string value = found->second;
    while (!value.empty() && value.back() == ' ') value.pop_back();
    if (value == "None") continue;
    RawArgument argument{found->first, {}, fmt::format("line {}", number)};
    if (value != "True") argument.words = {value == "False" ? "false" : plain_value(value)};
    launch.arguments.push_back(std::move(argument));
  }
  return launch;
}

// ---- YAML

void add_yaml_flags(const YAML::Node& map, const std::string& pointer, RawLaunch& launch,
                    const std::string& file, std::vector<Problem>& problems) {
  for (const auto& entry : map) {
    const auto key = entry.first.as<std::string>();
    RawArgument argument{
        key.substr(std::min(key.find_first_not_of('-'), key.size())), {}, fmt::format("{}/{}", pointer, key)};
    const YAML::Node& value = entry.second;
    if (value.IsNull()) continue;
    if (value.IsSequence()) {
      for (const auto& element : value) {
        if (element.IsScalar())
          argument.words.push_back(element.Scalar());
        else
          problems.push_back({file, argument.place, "a list of something else", "plain values"});
      }
    } else if (value.IsScalar()) {
      const std::string& text = value.Scalar();
      const bool yes = text == "true" || text == "True";
      if (!yes) argument.words.push_back(text == "False" ? "false" : text);
    } else {
      problems.push_back({file, argument.place, "an object", "a plain value or a list"});
      continue;
    }
    launch.arguments.push_back(std::move(argument));
  }
}

void add_yaml_variables(const YAML::Node& map, RawLaunch& launch) {
  if (!map.IsMap()) return;
  for (const auto& entry : map)
    if (entry.second.IsScalar()) launch.variables[entry.first.as<std::string>()] = entry.second.Scalar();
}

bool looks_like_yaml(const std::vector<std::string>& lines) {
  static const std::regex key(R"(^\s*-{0,2}[A-Za-z_][A-Za-z0-9_-]*:(\s.*)?$)");
  for (const std::string& line : lines) {
    if (line.empty() || line.find_first_not_of(' ') == std::string::npos) continue;
    if (line[line.find_first_not_of(' ')] == '#') continue;
    return line == "---" || (line.size() < kLongestLine && std::regex_match(line, key));
  }
  return false;
}

RawLaunch split_yaml(const std::string& text, const std::string& file, std::vector<Problem>& problems) {
  RawLaunch launch;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      problems.push_back({file, "", "no YAML mapping", "ENV_VARS and ARGS, or flags and their values"});
      return launch;
    }
    bool nested = false;
    for (const char* section : {"ENV_VARS", "ENV"})
      if (root[section]) add_yaml_variables(root[section], launch);
    for (const char* section : {"ARGS", "MODEL_ARGS"}) {
      if (!root[section] || !root[section].IsMap()) continue;
      nested = true;
      add_yaml_flags(root[section], "/" + std::string(section), launch, file, problems);
    }
    if (!nested) add_yaml_flags(root, "", launch, file, problems);
  } catch (const YAML::Exception& error) {
    problems.push_back(
        {file, "",
         fmt::format("line {}, column {}: {}", error.mark.line + 1, error.mark.column + 1, error.msg),
         "YAML"});
  }
  return launch;
}

// ---- shell

struct Word {
  std::string text;
  std::size_t line = 1;
  bool quoted = false;
};

// Words of a script, with quotes taken off, comments dropped and lines joined at backslashes. A line's end is a
// word "\n"; parentheses outside of ${} and $() are blanks, so that arrays read as their elements.
class ShellWords {
 public:
  explicit ShellWords(const std::string& text) : text_(text) {}

  std::vector<Word> all() {
    while (at_ < text_.size()) step();
    flush();
    return std::move(words_);
  }

 private:
  void flush() {
    if (has_word_) words_.push_back({word_, line_, quoted_});
    word_.clear();
    has_word_ = quoted_ = false;
  }
  void put(char c) {
    word_ += c;
    has_word_ = true;
  }

  void step() {
    const char c = text_[at_];
    if (c == '\\') return escaped();
    if (c == '\'' || c == '"') return quoted(c);
    if (c == '$' && at_ + 1 < text_.size() && (text_[at_ + 1] == '{' || text_[at_ + 1] == '('))
      return dollar();
    if (c == '#' && !has_word_) {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      return;
    }
    ++at_;
    if (c == '\n' || c == ';') {
      flush();
      words_.push_back({"\n", line_, false});
      if (c == '\n') ++line_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '(' || c == ')') {
      flush();
    } else {
      put(c);
    }
  }

  void escaped() {
    ++at_;
    if (at_ >= text_.size()) return;
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    if (text_[at_] == '\n') {
      flush();
      ++line_;
    } else {
      put(text_[at_]);
    }
    ++at_;
  }

  void quoted(char mark) {
    ++at_;
    has_word_ = quoted_ = true;
    while (at_ < text_.size() && text_[at_] != mark) {
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] == '\\' && mark == '"' && at_ + 1 < text_.size()) {
        if (text_[++at_] == '\n') {
          word_ += ' ';
          ++at_;
          continue;
        }
      }
      word_ += text_[at_++];
    }
    ++at_;
  }

  // ${...} and $(...) are kept as they are, to their closing mark.
  void dollar() {
    const char open = text_[at_ + 1];
    const char close = open == '{' ? '}' : ')';
    int depth = 0;
    put(text_[at_++]);
    do {
      if (text_[at_] == open) ++depth;
      if (text_[at_] == close) --depth;
      if (text_[at_] == '\n') ++line_;
      put(text_[at_++]);
    } while (at_ < text_.size() && depth > 0);
  }

  const std::string& text_;
  std::vector<Word> words_;
  std::string word_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  bool has_word_ = false;
  bool quoted_ = false;
};

bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") && std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

// NAME=VALUE, NAME+=VALUE
std::optional<std::pair<std::string, std::string>> assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  std::string name = word.substr(0, equals);
  if (name.back() == '+') name.pop_back();
  const bool plain =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!plain || name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return std::nullopt;
  return std::pair(name, word.substr(equals + 1));
}

std::optional<std::int64_t> whole(const std::string& text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 1 || value > 1'000'000) return {};
  return value;
}

class ShellReader {
 public:
  explicit ShellReader(RawLaunch& launch) : launch_(launch) {}

  void read(const std::vector<Word>& words) {
    for (const Word& word : words) take(word);
    if (nodes_ && per_node_) launch_.gpus = *nodes_ * *per_node_;
  }

 private:
  void take(const Word& word) {
    if (word.text == "\n" && !word.quoted) {
      open_ = nullptr;
      return;
    }
    if (is_flag(word.text)) return flag(word);
    const auto set = open_ == nullptr ? assignment(word.text) : std::nullopt;
    if (set) {
      launch_.variables[set->first] = set->second;
      nested(set->second, word.line);  // ARGS="--num-layers 32 ..."
    } else if (open_ != nullptr && word.text == "--") {
      open_ = nullptr;
    } else if (open_ != nullptr && !ends_options(word.text)) {
      open_->words.push_back(word.text);
      note_launcher();
    } else {
      open_ = nullptr;
      if (word.quoted) nested(word.text, word.line);
    }
  }

  // The script and expansions of whole lists end a flag's values.
  static bool ends_options(const std::string& word) {
    return word.ends_with(".py") || word.find("[@]") != std::string::npos ||
           word.find("[*]") != std::string::npos || word == "&" || word == "|" || word == "&&" ||
           word.starts_with("2>") || word.starts_with(">");
  }

  void nested(const std::string& text, std::size_t line) {
    if (text.find("--") == std::string::npos) return;
    std::vector<Word> words = ShellWords(text).all();
    for (Word& word : words) word.line = line;
    for (const Word& word : words) take(word);
    open_ = nullptr;
  }

  void flag(const Word& word) {
    std::string name = word.text.substr(2);
    std::vector<std::string> words;
    const std::size_t equals = name.find('=');
    if (equals != std::string::npos) {
      words.push_back(name.substr(equals + 1));
      name.resize(equals);
    }
    launch_.arguments.push_back({name, words, fmt::format("line {}", word.line)});
    open_ = &launch_.arguments.back();
    note_launcher();
    if (equals != std::string::npos) open_ = nullptr;
  }

  // torchrun's own options say how many GPUs there are.
  void note_launcher() {
    if (open_->words.size() != 1) return;
    const std::string value = filled(open_->words[0]);
    std::string name = open_->name;
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "nnodes") nodes_ = whole(value);
    if (name == "nproc-per-node") per_node_ = whole(value);
  }

  std::string filled(const std::string& word) const {
    std::string name = word.starts_with("${") && word.ends_with("}") ? word.substr(2, word.size() - 3)
                       : word.starts_with("$")                       ? word.substr(1)
                                                                     : "";
    const auto found = launch_.variables.find(name);
    return found == launch_.variables.end() ? word : found->second;
  }

  RawLaunch& launch_;
  RawArgument* open_ = nullptr;  // the flag whose values are being read
  std::optional<std::int64_t> nodes_;
  std::optional<std::int64_t> per_node_;
};

}  // namespace

RawLaunch split_launch_text(const std::string& text, const std::string& file,
                            std::vector<Problem>& problems) {
  const std::vector<std::string> lines = lines_of(text);
  if (is_dump(lines)) return split_dump(lines);
  if (looks_like_yaml(lines)) return split_yaml(text, file, problems);
  RawLaunch launch;
  ShellReader(launch).read(ShellWords(text).all());
  return launch;
}

}  // namespace stepcast
