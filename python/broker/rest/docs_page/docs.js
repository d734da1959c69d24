"use strict";
// Renders the OpenAPI document. Everything goes in as text, never as markup.
const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
const typeOf = (schema, all) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, all)).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `array of ${typeOf(schema.items, all) || "anything"}`;
  const bounds = ["minimum", "maximum", "minLength", "maxLength", "maxItems", "format", "default"]
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
const operation = (method, path, described) => {
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
  const body = described.requestBody && Object.values(described.requestBody.content)[0];
  if (body) {
    node.append(make("h4", "Body"), fields(body.schema));
    if (body.example) node.append(make("pre", JSON.stringify(body.example, null, 2)));
  }
  node.append(make("h4", "Answers"), table(Object.entries(described.responses).map(([status, answer]) => [
    status, answer.description, typeOf(Object.values(answer.content || {})[0]?.schema),
  ])));
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
        if (described.tags.includes(name)) main.append(operation(method, all.servers[0].url + path, described));
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
