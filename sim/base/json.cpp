#include "base/json.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

namespace stepcast {
namespace {

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxBytes = 64U << 20U;

// "line 3, column 7" of a byte offset (1-based, as the parser reports it).
std::string position(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(text.size(), byte > 0 ? byte - 1 : 0));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto start = before.rfind('\n');
  const auto column = before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) too_deep = true;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return !too_deep;
  };
  try {
    Json document = Json::parse(text, watch);
    if (too_deep)
      throw InputError({name, "", "nested too deep", fmt::format("at most {} levels", kMaxDepth)});
    if (!twice.empty())
      throw InputError({name, "", fmt::format("key \"{}\" is given twice in one object", twice), "once"});
    return document;
  } catch (const Json::parse_error& error) {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line L, column C: …"
    const auto colon = what.find(": ");
    if (colon != std::string::npos) what = what.substr(colon + 2);
    throw InputError(
        {name, "", fmt::format("not JSON at {}: {}", position(text, error.byte), what), "RFC 8259 JSON"});
  } catch (const Json::out_of_range& error) {
    throw InputError({name, "", "a number is out of range", "numbers that a double can hold"});
  }
}

Json load_json(const std::filesystem::path& file) {
  std::error_code code;
  if (!std::filesystem::exists(file, code))
    throw InputError({file.string(), "", "no such file", "the path of a JSON file"});
  if (std::filesystem::is_directory(file, code))
    throw InputError({file.string(), "", "is a directory", "the path of a JSON file"});
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  std::array<char, 65536> block{};
  while (stream.read(block.data(), block.size()) || stream.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kMaxBytes)
      throw InputError({file.string(), "", "is too large", fmt::format("at most {} MiB", kMaxBytes >> 20U)});
  }
  if (!stream.eof()) throw InputError({file.string(), "", "cannot be read", "a readable JSON file"});
  if (text.empty()) throw InputError({file.string(), "", "is empty", "a JSON file"});
  return parse_json(text, file.string());
}

// A link's target, so that the link stays a link.
std::filesystem::path followed(const std::filesystem::path& file) {
  std::error_code code;
  const std::filesystem::path target = std::filesystem::weakly_canonical(file, code);
  return code || target.empty() ? file : target;
}

void write_file(const std::filesystem::path& name, std::string_view text) {
  const std::filesystem::path file = followed(name);
  std::error_code code;
  const bool special = std::filesystem::exists(file, code) && !std::filesystem::is_regular_file(file, code);
  // a pipe or device is written, not replaced
  const std::filesystem::path target =
      special ? file : std::filesystem::path(file.string() + fmt::format(".{}.tmp", ::getpid()));
  errno = 0;
  std::ofstream stream(target, std::ios::binary);
  stream << text;
  stream.close();
  code.clear();
  if (stream && !special) std::filesystem::rename(target, file, code);
  if (stream && !code) return;
  const std::string reason = code ? code.message() : std::strerror(errno);
  if (!special) std::filesystem::remove(target, code);
  throw InputError({name.string(), "", "cannot be written: " + reason, "a path in a writable folder"});
}

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string child_pointer(const std::string& pointer, const std::string& key) {
  std::string escaped;
  for (const char c : key) {
    if (c == '~')
      escaped += "~0";
    else if (c == '/')
      escaped += "~1";
    else
      escaped += c;
  }
  return pointer + "/" + escaped;
}

void apply_set(Json& document, const std::string& assignment) {
  const std::string allowed = "/pointer=value, for example /layout/tp=8";
  const auto equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0 || assignment[0] != '/')
    throw InputError({"--set", "", fmt::format("\"{}\" is no assignment", assignment), allowed});
  const std::string pointer = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  Json value = Json::accept(text) ? parse_json(text, "--set " + pointer) : Json(text);
  try {
    // Walk by hand: nlohmann's operator[] would turn a null into an array for a numeric token.
    Json* at = &document;
    const Json::json_pointer whole(pointer);
    std::vector<std::string> tokens;
    for (Json::json_pointer p = whole; !p.empty(); p = p.parent_pointer()) tokens.push_back(p.back());
    std::reverse(tokens.begin(), tokens.end());
    for (const std::string& token : tokens) {
      if (at->is_null()) *at = Json::object();
      if (at->is_array()) {
        const bool digits =
            !token.empty() && std::all_of(token.begin(), token.end(), ::isdigit) && token.size() < 7;
        if (!digits || std::stoul(token) >= at->size())
          throw InputError(
              {"--set", pointer, fmt::format("no element {} in the list", token), "an existing index"});
        at = &(*at)[std::stoul(token)];
      } else if (at->is_object()) {
        at = &(*at)[token];
      } else {
        throw InputError(
            {"--set", pointer, "runs through a value that is no object", "a key of the scenario"});
      }
    }
    *at = std::move(value);
  } catch (const Json::exception&) {
    throw InputError({"--set", pointer, "is no JSON pointer", allowed});
  }
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  const auto distance = [](const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
        diagonal = above;
      }
    }
    return row[b.size()];
  };
  if (name.size() > 100) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 2) + 1;
  for (const std::string& candidate : known) {
    const std::size_t d = distance(name, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace stepcast
