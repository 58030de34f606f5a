#include "base/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "base/data_folder.h"
#include "base/json.h"

namespace stepcast {
namespace {

using Adapter = valijson::adapters::NlohmannJsonAdapter;

struct CompiledSchema {
  Json text;
  valijson::Schema compiled;
};

const CompiledSchema& schema_named(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<CompiledSchema>> cache;
  const std::lock_guard lock(mutex);
  auto& entry = cache[name];
  if (!entry) {
    entry = std::make_unique<CompiledSchema>();
    entry->text = load_json(data_folder() / "scenarios" / "schemas" / (name + ".schema.json"));
    const nlohmann::json plain = entry->text;
    valijson::SchemaParser parser;
    parser.populateSchema(Adapter(plain), entry->compiled);
  }
  return *entry;
}

// In a schema marked "x-null-is-absent" a key with the value null was not given, but below "x-null" null has
// a meaning (search's `free`).
bool null_has_meaning(const Json& schema) { return schema.value("x-null", false); }

Json without_nulls(const Json& value, const Json& schema) {
  if (value.is_array() && schema.contains("items")) {
    Json kept = Json::array();
    for (const Json& item : value) kept.push_back(without_nulls(item, schema["items"]));
    return kept;
  }
  if (!value.is_object() || null_has_meaning(schema)) return value;
  Json kept = Json::object();
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) {
      // an unknown key stays, so that it is reported
      if (!schema.contains("properties") || schema["properties"].contains(key)) continue;
    }
    const bool known = schema.contains("properties") && schema["properties"].contains(key);
    kept[key] = known ? without_nulls(member, schema["properties"][key]) : member;
  }
  return kept;
}

std::string short_text(const Json& value) {
  std::string text = text_of(value);
  if (text.size() <= 60) return text;
  std::size_t end = 57;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U)
    --end;  // not inside a character
  return text.substr(0, end) + "...";
}

std::string type_words(const Json& schema) {
  static const std::map<std::string, std::string> words = {
      {"integer", "an integer"}, {"number", "a number"},
      {"string", "a string"},    {"boolean", "true or false"},
      {"array", "a list"},       {"object", "an object"},
      {"null", "null"}};
  std::vector<std::string> names;
  const Json& type = schema["type"];
  for (const Json& one : type.is_array() ? type : Json::array({type}))
    names.push_back(words.at(one.get<std::string>()));
  return fmt::format("{}", fmt::join(names, " or "));
}

std::string allowed_by(const Json& schema) {
  if (schema.contains("enum")) {
    std::vector<std::string> values;
    for (const Json& value : schema["enum"])
      values.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    return fmt::format("one of {}", fmt::join(values, ", "));
  }
  if (schema.contains("const")) return schema["const"].dump();
  std::string text = schema.contains("type") ? type_words(schema) : "another value";
  const auto bound = [&](const char* key, const char* words) {
    if (schema.contains(key)) text += fmt::format(" {} {}", words, schema[key].dump());
  };
  const bool both = schema.contains("minimum") && schema.contains("maximum");
  bound("minimum", both ? "from" : "of at least");
  bound("exclusiveMinimum", "above");
  bound("maximum", both ? "to" : "up to");
  bound("minLength", "of length at least");
  bound("maxLength", "of length up to");
  bound("minItems", "with at least");
  bound("maxItems", "with at most");
  if (schema.contains("pattern")) text += " matching " + schema["pattern"].get<std::string>();
  return text;
}

// The problems of one object's own keys: unknown ones and missing ones.
bool explain_keys(const Json& value, const Json& schema, const std::string& file, const std::string& pointer,
                  std::vector<Problem>& problems) {
  bool explained = false;
  if (!value.is_object() || !schema.contains("properties")) return false;
  std::vector<std::string> known;
  for (const auto& [key, unused] : schema["properties"].items()) known.push_back(key);
  if (schema.contains("additionalProperties") && schema["additionalProperties"] == false) {
    for (const auto& [key, unused] : value.items()) {
      if (schema["properties"].contains(key)) continue;
      const std::string near = nearest_name(key, known);
      problems.push_back(
          {file, child_pointer(pointer, key), "unknown key",
           near.empty() ? fmt::format("one of {}", fmt::join(known, ", "))
                        : fmt::format("did you mean \"{}\"? Known keys: {}", near, fmt::join(known, ", "))});
      explained = true;
    }
  }
  if (schema.contains("required")) {
    for (const Json& key : schema["required"]) {
      if (value.contains(key.get<std::string>())) continue;
      problems.push_back({file, child_pointer(pointer, key.get<std::string>()), "missing",
                          allowed_by(schema["properties"][key.get<std::string>()])});
      explained = true;
    }
  }
  return explained;
}

// The value and the schema node at the place that the validator names, as ["<root>", "[layout]", "[tp]"] or
// "[0]".
struct Place {
  const Json* value = nullptr;
  const Json* schema = nullptr;
  std::string pointer;
};

// The definition that a node refers to, or the node.
const Json* resolved(const Json* node, const Json& schema) {
  while (node != nullptr && node->contains("$ref"))
    node = &schema.at(Json::json_pointer((*node)["$ref"].get<std::string>().substr(1)));
  return node;
}

Place locate(const std::vector<std::string>& context, const Json& document, const Json& schema,
             const std::string& prefix) {
  Place place{&document, &schema, prefix};
  for (std::size_t i = 1; i < context.size(); ++i) {
    const std::string& step = context[i];
    const std::string token = step.size() >= 2 ? step.substr(1, step.size() - 2) : step;
    place.pointer = child_pointer(place.pointer, token);
    if (place.value != nullptr && place.value->is_array()) {
      place.value = &place.value->at(std::stoul(token));
      if (place.schema != nullptr)
        place.schema = place.schema->contains("items") ? &(*place.schema)["items"] : nullptr;
    } else if (place.value != nullptr && place.value->is_object() && place.value->contains(token)) {
      place.value = &(*place.value)[token];
      if (place.schema == nullptr) continue;
      const Json& at = *place.schema;
      if (at.contains("properties") && at["properties"].contains(token))
        place.schema = &at["properties"][token];
      else
        place.schema = at.contains("additionalProperties") ? &at["additionalProperties"] : nullptr;
    }
    place.schema = resolved(place.schema, schema);
  }
  return place;
}

}  // namespace

void check_schema(const Json& document, const std::string& name, const std::string& file,
                  const std::string& prefix, std::vector<Problem>& problems) {
  const CompiledSchema& schema = schema_named(name);
  const Json given =
      schema.text.value("x-null-is-absent", false) ? without_nulls(document, schema.text) : document;
  const nlohmann::json plain = given;
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(schema.compiled, Adapter(plain), &results)) return;

  std::set<std::string> seen;
  const std::size_t before = problems.size();
  std::string fallback;
  for (valijson::ValidationResults::Error error; results.popError(error);) {
    fallback = error.description;
    const Place place = locate(error.context, given, schema.text, prefix);
    if (!seen.insert(place.pointer).second || place.value == nullptr || place.schema == nullptr) continue;
    if (explain_keys(*place.value, *place.schema, file, place.pointer, problems)) continue;
    const bool only_passes_on = error.description.rfind("Failed to validate", 0) == 0;
    if (only_passes_on && (place.value->is_object() || place.value->is_array())) continue;
    problems.push_back({file, place.pointer, short_text(*place.value), allowed_by(*place.schema)});
  }
  if (problems.size() == before)
    problems.push_back({file, prefix, fallback, "see scenarios/schemas/" + name + ".schema.json"});
}

namespace {

Json fill(const Json& value, const Json& schema) {
  if (!value.is_object() || !schema.contains("properties")) return value;
  Json filled = Json::object();
  for (const auto& [key, member_schema] : schema["properties"].items()) {
    if (value.contains(key) && !value[key].is_null())
      filled[key] = fill(value[key], member_schema);
    else if (member_schema.contains("default"))
      filled[key] = fill(member_schema["default"], member_schema);
  }
  for (const auto& [key, member] : value.items()) {
    if (!filled.contains(key) && !schema["properties"].contains(key)) filled[key] = member;
  }
  return filled;
}

}  // namespace

Json with_defaults(const Json& document, const std::string& name) {
  return fill(document, schema_named(name).text);
}

Json without_absent(const Json& document, const std::string& name) {
  return without_nulls(document, schema_named(name).text);
}

bool schema_has(const std::string& name, const std::string& pointer) {
  if (pointer.empty() || pointer[0] != '/') return false;
  const Json* at = &schema_named(name).text;
  std::istringstream keys(pointer.substr(1));
  for (std::string key; std::getline(keys, key, '/');) {
    if (!at->contains("properties") || !(*at)["properties"].contains(key)) return false;
    at = &(*at)["properties"][key];
  }
  return true;
}

}  // namespace stepcast
