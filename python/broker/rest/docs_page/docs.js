"use strict";
// Renders the OpenAPI document. Everything goes in as text, never as markup.
const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
const resolve = (value, all) =>
  value.$ref ? value.$ref.slice(2).split("/").reduce((inner, name) => inner[name], all) : value;
const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const options = schema.anyOf || (schema.properties ? null : schema.oneOf);
  if (options) return options.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `array of ${typeOf(schema.items) || "anything"}`;
  const bounds = ["minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern", "format", "default"]
    .filter((key) => schema[key] !== undefined && schema[key] !== null)
    .map((key) => `${key} ${JSON.stringify(schema[key])}`);
  return [schema.type || "anything", ...bounds].join(", ");
};
const table = (rows) => {
  const node = make("table");
  for (const row of rows) node.append(make("tr", "", ...row.map((cell) => make("td", cell))));
  return node;
};
const fields = (schema) =>
  table(Object.entries(schema.properties || {}).map(([name, field]) => [
    name + ((schema.required || []).includes(name) ? " *" : ""), typeOf(field), field.description || "",
  ]));
const example = (content) => {
  const value = content.example ?? Object.values(content.examples || {})[0]?.value;
  return value === undefined ? [] : [make("pre", JSON.stringify(value, null, 2))];
};
const operation = (method, path, described, all) => {
  const node = make("details", "", make("summary", "", make("b", method.toUpperCase()), make("code", path),
    ` ${described.summary}`));
  node.id = described.operationId;
  node.append(make("p", described.description));
  const parameters = described.parameters || [];
  if (parameters.length) {
    node.append(make("h4", "Parameters"), table(parameters.map((one) => [
      `${one.name}${one.required ? " *" : ""} (${one.in})`, typeOf(one.schema),
      one.description || one.schema.description || "",
    ])));
  }
  for (const [type, body] of Object.entries(described.requestBody?.content || {})) {
    const told = described.requestBody.description;
    node.append(make("h4", `Body, ${type}`), make("p", told), fields(resolve(body.schema, all)));
    node.append(...example(body));
  }
  const answers = Object.entries(described.responses).map(([status, one]) => [status, resolve(one, all)]);
  node.append(make("h4", "Answers"), table(answers.map(([status, answer]) => [
    status, answer.description, typeOf(Object.values(answer.content || {})[0]?.schema),
  ])));
  for (const [status, answer] of answers) {
    if (status < 300) for (const content of Object.values(answer.content || {})) node.append(...example(content));
  }
  return node;
};
fetch("api/v1/openapi.json").then((answer) => answer.json()).then((all) => {
  document.getElementById("about").textContent = all.info.description;
  const main = document.getElementById("reference");
  main.replaceChildren();
  for (const { name } of all.tags) {
    main.append(make("h2", name));
    for (const [path, methods] of Object.entries(all.paths)) {
      for (const [method, described] of Object.entries(methods)) {
        if (described.tags.includes(name)) main.append(operation(method, all.servers[0].url + path, described, all));
      }
    }
  }
  main.append(make("h2", "Schemas"));
  for (const [name, schema] of Object.entries(all.components.schemas)) {
    const node = make("details", "", make("summary", name), make("p", schema.description || ""), fields(schema));
    if (schema.enum) node.append(make("p", typeOf(schema)));
    main.append(node);
  }
}).catch((fault) => {
  document.getElementById("reference").textContent = `The reference cannot be loaded: ${fault.message}`;
});
