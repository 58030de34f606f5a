#include "layout/number_list.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

namespace stepcast {
namespace {

// expression = term {"+" term}; term = factor {"*" factor}

constexpr std::size_t kMostElements = 100'000;

struct Value {
  bool list = false;
  std::vector<std::int64_t> elements;  // of a number: one
};

class ListParser {
 public:
  explicit ListParser(std::string_view text) : text_(text) {}

  std::optional<Value> parse() {
    auto value = sum();
    skip_blanks();
    return value && at_ == text_.size() ? value : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 50;

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Value> sum() {
    auto left = product();
    while (left && take('+')) {
      const auto right = product();
      if (!right || left->list != right->list) return std::nullopt;
      if (left->list) {
        left->elements.insert(left->elements.end(), right->elements.begin(), right->elements.end());
        if (left->elements.size() > kMostElements) return std::nullopt;
      } else if (__builtin_add_overflow(left->elements[0], right->elements[0], &left->elements[0])) {
        return std::nullopt;
      }
    }
    return left;
  }

  std::optional<Value> product() {
    auto left = factor();
    while (left && take('*')) {
      auto right = factor();
      if (!right || (left->list && right->list)) return std::nullopt;
      if (right->list) std::swap(*left, *right);
      if (left->list)
        left = repeated(*left, right->elements[0]);
      else if (__builtin_mul_overflow(left->elements[0], right->elements[0], &left->elements[0]))
        return std::nullopt;
    }
    return left;
  }

  static std::optional<Value> repeated(const Value& list, std::int64_t times) {
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, times));
    if (!list.elements.empty() && count > kMostElements / list.elements.size()) return std::nullopt;
    Value result{true, {}};
    for (std::size_t i = 0; i < count; ++i)
      result.elements.insert(result.elements.end(), list.elements.begin(), list.elements.end());
    return result;
  }

  std::optional<Value> factor() {
    if (++depth_ > kDeepest) return std::nullopt;
    auto value = take('(') ? parenthesis() : take('[') ? list() : number();
    --depth_;
    return value;
  }

  std::optional<Value> parenthesis() {
    auto value = sum();
    return value && take(')') ? value : std::nullopt;
  }

  std::optional<Value> list() {
    Value result{true, {}};
    if (take(']')) return result;
    do {
      const auto element = sum();
      if (!element || element->list) return std::nullopt;
      result.elements.push_back(element->elements[0]);
    } while (take(','));
    return take(']') ? std::optional(result) : std::nullopt;
  }

  std::optional<Value> number() {
    skip_blanks();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || stop == begin) return std::nullopt;
    at_ += static_cast<std::size_t>(stop - begin);
    return Value{false, {value}};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<std::vector<std::int64_t>> evaluate_list(std::string_view expression) {
  const auto value = ListParser(expression).parse();
  if (!value) return std::nullopt;
  return value->elements;
}

}  // namespace stepcast
