#include "layout/stage_split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace stepcast {
namespace {

constexpr std::string_view kSymbols = "Etm|L";
const char* const kGrammar =
    "E (embedding), t (layer), m (MTP layer), L (loss), | between stages, x*n and (...)*n, as in "
    "Et|(tt|)*30mL";

// A layout string without commas, read left to right into plain symbols.
class LayoutReader {
 public:
  explicit LayoutReader(std::string text) : text_(std::move(text)) {}

  // The symbols, or nothing and `error()`.
  std::optional<std::string> read() {
    while (at_ < text_.size() && error_.empty()) read_one();
    if (error_.empty() && in_group_) fail("a ( without )");
    if (!error_.empty()) return std::nullopt;
    return symbols_;
  }
  const std::string& error() const { return error_; }

 private:
  void fail(const std::string& what) {
    if (error_.empty()) error_ = fmt::format("{} at character {} of \"{}\"", what, at_ + 1, shortened());
  }

  std::string shortened() const { return text_.size() <= 60 ? text_ : text_.substr(0, 57) + "..."; }

  void read_one() {
    const char c = text_[at_];
    if (c == '(') {
      open_group();
    } else if (c == ')') {
      close_group();
    } else if (kSymbols.find(c) != std::string_view::npos) {
      ++at_;
      repeat(std::string(1, c), read_count(1), in_group_ ? group_ : symbols_);
    } else if (c == '*') {
      fail("a * that follows neither a symbol nor a group");
    } else {
      fail("an unknown symbol");
    }
  }

  void open_group() {
    if (in_group_) fail("a group inside a group");
    in_group_ = true;
    group_.clear();
    ++at_;
    if (at_ < text_.size() && text_[at_] == ')') fail("an empty group");
  }

  void close_group() {
    if (!in_group_) return fail("a ) without (");
    in_group_ = false;
    ++at_;
    repeat(group_, read_count(std::nullopt), symbols_);
  }

  // The n of "*n" here; `otherwise` when there is no *.
  std::int64_t read_count(std::optional<std::int64_t> otherwise) {
    if (at_ == text_.size() || text_[at_] != '*') {
      if (!otherwise) fail("a group without *n");
      return otherwise.value_or(0);
    }
    ++at_;
    const std::size_t start = at_;
    std::int64_t count = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      count = std::min(10 * count + (text_[at_] - '0'), kMaxSymbols + 1);
    if (at_ == start) fail("a * without a number");
    return count;
  }

  void repeat(const std::string& unit, std::int64_t count, std::string& to) {
    const auto length = static_cast<std::int64_t>(unit.size());
    if (length == 0 || count == 0 || !error_.empty()) return;
    if (count > (kMaxSymbols - static_cast<std::int64_t>(to.size())) / length)
      return fail(fmt::format("more than {} symbols", kMaxSymbols));
    for (std::int64_t i = 0; i < count; ++i) to += unit;
  }

  std::string text_;
  std::size_t at_ = 0;
  std::string symbols_;
  std::string group_;
  bool in_group_ = false;
  std::string error_;
};

std::vector<std::string> split_at_bars(const std::string& symbols) {
  std::vector<std::string> stages(1);
  for (const char c : symbols) {
    if (c == '|')
      stages.emplace_back();
    else
      stages.back() += c;
  }
  return stages;
}

std::int64_t count_of(const std::string& stage, char symbol) {
  return std::count(stage.begin(), stage.end(), symbol);
}

std::int64_t count_of(const std::vector<std::string>& stages, char symbol) {
  std::int64_t count = 0;
  for (const std::string& stage : stages) count += count_of(stage, symbol);
  return count;
}

// Rule 17 on where MTP layers may lie; `refuse` takes what was found and what is allowed.
template <typename Refuse>
void check_mtp_stages(const std::vector<std::string>& stages, std::int64_t pp, const Refuse& refuse) {
  const auto total = static_cast<std::int64_t>(stages.size());
  std::vector<std::int64_t> holding_mtp;
  bool layer_after_mtp = false;
  for (std::int64_t q = 0; q < total; ++q) {
    const std::string& stage = stages[static_cast<std::size_t>(q)];
    const std::size_t after = holding_mtp.empty() ? stage.find('m') : 0;
    if (after != std::string::npos && stage.find('t', after) != std::string::npos) layer_after_mtp = true;
    if (count_of(stage, 'm') > 0) holding_mtp.push_back(q);
  }
  if (layer_after_mtp) refuse("a t follows an m", "every t before the first m");
  if (holding_mtp.size() > 1)
    refuse(fmt::format("MTP layers lie in {} stages", holding_mtp.size()), "all of them in one stage");
  if (!holding_mtp.empty() && holding_mtp.front() < total - pp)
    refuse(fmt::format("stage {} holds an MTP layer and is not the last of its rank", holding_mtp.front()),
           fmt::format("MTP layers in one of the stages {} to {}", total - pp, total - 1));
}

// Embedding, head and layers of a string that keeps rule 17.
std::vector<Stage> stages_of(const std::vector<std::string>& symbols) {
  std::vector<Stage> stages;
  std::int64_t layer = 0;
  for (const std::string& text : symbols) {
    const Stage stage = {count_of(text, 'E') > 0, layer, count_of(text, 't'), count_of(text, 'm'),
                         count_of(text, 'L') > 0};
    layer += stage.layers;
    stages.push_back(stage);
  }
  return stages;
}

std::vector<Stage> stages_of(const std::vector<std::int64_t>& layers, std::int64_t mtp_layers) {
  std::vector<Stage> stages;
  std::int64_t layer = 0;
  for (const std::int64_t count : layers) {
    stages.push_back({false, layer, count, 0, false});
    layer += count;
  }
  stages.front().embedding = true;
  stages.back().mtp = mtp_layers;
  stages.back().head = true;
  return stages;
}

// Layers of each stage when embedding, loss and MTP layers take a layer's place each; empty when that does
// not work.
std::vector<std::int64_t> counted_layers(const Model& model, std::int64_t stages) {
  const std::int64_t places = model.layers + model.mtp_layers + 2;
  const std::int64_t each = places / stages;
  if (places % stages != 0 || stages < 2 || each < 1 + model.mtp_layers) return {};
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), each);
  layers.front() -= 1;
  layers.back() -= 1 + model.mtp_layers;
  return layers;
}

// Layers of each stage, differing by at most one. Inner stages get the larger share first, the late ones
// before the early ones, which keep more micro-batches in flight; then the first stage; the last has the head
// already.
std::vector<std::int64_t> balanced_layers(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> share(static_cast<std::size_t>(stages), layers / stages);
  for (std::int64_t extra = 0; extra < layers % stages; ++extra)
    ++share[static_cast<std::size_t>(stages - 2 -
                                     extra)];  // the remainder is below `stages`: never the last one
  return share;
}

void split_without_string(const Model& model, StageSplit& split) {
  const std::int64_t stages = split.pp * split.chunks;
  const std::vector<std::int64_t> counted = counted_layers(model, stages);
  if (model.layers % stages == 0) {
    split.how = "even";
    split.stages = stages_of(balanced_layers(model.layers, stages), model.mtp_layers);
  } else if (!counted.empty()) {
    split.how = model.mtp_layers > 0 ? "embedding, loss and MTP layers count as layers"
                                     : "embedding and loss count as layers";
    split.stages = stages_of(counted, model.mtp_layers);
  } else {
    split.how = "balanced, outer stages lightest";
    split.stages = stages_of(balanced_layers(model.layers, stages), model.mtp_layers);
  }
}

// "t" or "tt" or "t*3"
std::string repeated(char symbol, std::int64_t count) {
  if (count <= 2) return std::string(static_cast<std::size_t>(count), symbol);
  return fmt::format("{}*{}", symbol, count);
}

std::string symbols_of(const Stage& stage) {
  return (stage.embedding ? "E" : "") + repeated('t', stage.layers) + repeated('m', stage.mtp) +
         (stage.head ? "L" : "");
}

}  // namespace

// A chunk that runs backwards over the ranks is the second arm of a V.
std::int64_t StageSplit::rank_of(std::int64_t stage) const {
  const std::int64_t rank = stage % pp;
  return v_shaped && chunk_of(stage) % 2 == 1 ? pp - 1 - rank : rank;
}

std::int64_t StageSplit::chunk_of(std::int64_t stage) const { return stage / pp; }

std::int64_t StageSplit::stage_of(std::int64_t rank, std::int64_t chunk) const {
  return chunk * pp + (v_shaped && chunk % 2 == 1 ? pp - 1 - rank : rank);
}

std::int64_t StageSplit::layers_of_rank(std::int64_t rank) const {
  std::int64_t layers = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
    layers += stages[static_cast<std::size_t>(stage_of(rank, chunk))].layers;
  return layers;
}

std::vector<std::string> expand_layout_string(const std::string& text, const std::string& file,
                                              const std::string& pointer, std::vector<Problem>& problems) {
  std::string without_commas = text;
  std::erase(without_commas, ',');
  LayoutReader reader(std::move(without_commas));
  const std::optional<std::string> symbols = reader.read();
  if (symbols) return split_at_bars(*symbols);
  problems.push_back({file, pointer, reader.error(), kGrammar});
  return {};
}

void check_layout_stages(const std::vector<std::string>& stages, std::int64_t layers, std::int64_t mtp_layers,
                         std::int64_t pp, std::int64_t chunks, const std::string& file,
                         const std::string& pointer, std::vector<Problem>& problems) {
  const auto refuse = [&](std::string found, std::string allowed) {
    problems.push_back({file, pointer, std::move(found), std::move(allowed)});
  };
  const auto need = [&](char symbol, const char* meaning, std::int64_t wanted) {
    const std::int64_t count = count_of(stages, symbol);
    if (count != wanted) refuse(fmt::format("{} {} ({})", count, symbol, meaning), fmt::format("{}", wanted));
  };
  const auto total = static_cast<std::int64_t>(stages.size());
  if (total % pp != 0)
    refuse(fmt::format("{} stages do not divide over pp {}", total, pp),
           fmt::format("a multiple of {} stages", pp));
  else if (total / pp != chunks)
    refuse(fmt::format("{} stages over pp {} are {} a rank, but vpp is {}", total, pp, total / pp, chunks),
           fmt::format("vpp {}, or pp x vpp stages", total / pp));
  if (stages.front().empty() || stages.front().front() != 'E')
    refuse("the first symbol is not E", "a first stage that starts with E");
  if (stages.back().empty() || stages.back().back() != 'L')
    refuse("the last symbol is not L", "a last stage that ends with L");
  need('E', "embedding", 1);
  need('L', "loss", 1);
  need('t', "decoder layers", layers);
  need('m', "MTP layers", mtp_layers);
  check_mtp_stages(stages, pp, refuse);
}

StageSplit split_stages(const Model& model, std::int64_t pp, std::int64_t chunks, bool v_shaped,
                        const std::string& layout_string, const std::string& file, const std::string& pointer,
                        std::vector<Problem>& problems) {
  StageSplit split;
  split.v_shaped = v_shaped;
  if (pp > kMaxSymbols / std::max<std::int64_t>(1, chunks)) {
    problems.push_back({file, pointer, fmt::format("pp {} with {} chunks a rank", pp, chunks),
                        fmt::format("at most {} stages", kMaxSymbols)});
    split_without_string(model, split);
    return split;
  }
  split.pp = pp;
  split.chunks = chunks;
  if (layout_string.empty()) {
    split_without_string(model, split);
    return split;
  }
  const std::size_t before = problems.size();
  const std::vector<std::string> symbols = expand_layout_string(layout_string, file, pointer, problems);
  if (problems.size() == before)
    check_layout_stages(symbols, model.layers, model.mtp_layers, pp, chunks, file, pointer, problems);
  for (std::size_t i = before; i < problems.size(); ++i) problems[i].found += " (rule 17)";
  if (problems.size() > before) {
    split_without_string(model, split);
  } else {
    split.how = "layout string";
    split.stages = stages_of(symbols);
  }
  return split;
}

std::string layout_string(const StageSplit& split) {
  std::string text;
  const std::size_t last = split.stages.size() - 1;
  for (std::size_t q = 0; q < last;) {
    const std::string stage = symbols_of(split.stages[q]) + "|";
    std::size_t end = q + 1;
    while (end < last && symbols_of(split.stages[end]) + "|" == stage) ++end;
    if (end - q > 2) {
      text += fmt::format("({})*{}", stage, end - q);
    } else {
      for (std::size_t i = q; i < end; ++i) text += stage;
    }
    q = end;
  }
  return text + symbols_of(split.stages[last]);
}

std::string contents_of(const Stage& stage) {
  std::vector<std::string> parts;
  if (stage.embedding) parts.emplace_back("E");
  for (const auto& [symbol, count] : {std::pair{'t', stage.layers}, std::pair{'m', stage.mtp}}) {
    if (count == 1) parts.emplace_back(1, symbol);
    if (count > 1) parts.push_back(fmt::format("{}*{}", symbol, count));
  }
  if (stage.head) parts.emplace_back("L");
  return parts.empty() ? "(empty)" : fmt::format("{}", fmt::join(parts, " "));
}

}  // namespace stepcast
