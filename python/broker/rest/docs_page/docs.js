"use strict";
// Renders the OpenAPI and the AsyncAPI document. Everything goes in as text, never as markup.
const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  // What stands between backticks is code, but in code itself.
  const pieces = text && !["code", "pre"].includes(tag) ? text.split(/`([^`]+)`/) : [text ?? ""];
  pieces.forEach((piece, place) => {
    node.append(place % 2 ? Object.assign(document.createElement("code"), { textContent: piece }) : piece);
  });
  node.append(...children);
  return node;
};
const paragraphs = (text) => text.split(/\n{2,}/).map((one) => make("p", one));
const classed = (name, node) => Object.assign(node, { className: name });
const resolve = (value, all) => {
  while (value?.$ref) {
    const path = value.$ref.slice(2).split("/");
    value = path.reduce((inner, name) => inner[name.replaceAll("~1", "/").replaceAll("~0", "~")], all);
  }
  return value;
};
const nameOf = (reference) => reference.$ref.split("/").pop();
const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema);
  const options = schema.anyOf || (schema.properties ? null : schema.oneOf);
  if (options) return options.map(typeOf).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `array of ${typeOf(schema.items) || "anything"}`;
  const bounds = ["minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern", "format", "default"]
    .filter((key) => schema[key] !== undefined && schema[key] !== null)
    .map((key) => `${key} ${JSON.stringify(schema[key])}`);
  return [[schema.type].flat().filter(Boolean).join(" or ") || "anything", ...bounds].join(", ");
};
// A cell with a type, whose names lead to their schemas.
const typed = (schema) => make("td", "", ...typeOf(schema).split(/\b([A-Z]\w+)\b/).map((piece, place) => {
  const ids = place % 2 ? [`HTTP-schemas-${piece}`, `WebSocket-schemas-${piece}`] : [];
  const id = ids.find((one) => document.getElementById(one));
  return id ? Object.assign(make("a", piece), { href: `#${id}` }) : piece;
}));
const table = (rows, heads) => {
  const node = make("table");
  if (heads) node.append(make("tr", "", ...heads.map((head) => make("th", head))));
  const cells = (row) => row.map((cell) => cell instanceof Node ? cell : make("td", `${cell ?? ""}`));
  for (const row of rows) node.append(make("tr", "", ...cells(row)));
  return classed("wide", make("div", "", node));
};
const fields = (schema) =>
  table(Object.entries(schema?.properties || {}).map(([name, field]) => [
    name + ((schema.required || []).includes(name) ? " *" : ""), typed(field), field.description,
  ]));
const shown = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return classed("example", make("div", "", copy, make("pre", text)));
};
const example = (content) => {
  const value = content.example ?? Object.values(content.examples || {})[0]?.value;
  return value === undefined ? [] : [shown(value)];
};

const entries = []; // all that can be found
// A line that opens; what is in it is made when it does.
const entry = (id, verb, kind, name, summary, words, fill) => {
  const heading = make("summary", "", classed(`verb ${kind}`, make("b", verb)), make("code", name), make("span", summary));
  const node = make("details", "", heading);
  node.id = id;
  let isFilled = false;
  node.addEventListener("toggle", () => {
    if (!node.open || isFilled) return;
    isFilled = true;
    node.append(...fill());
  });
  entries.push({ node, text: `${name} ${summary} ${words}`.toLowerCase() });
  return node;
};
const request = (path, described, all) => {
  const parts = [make("p", described.description)];
  const parameters = described.parameters || [];
  if (parameters.length) {
    parts.push(make("h4", "Parameters"), table(parameters.map((one) => [
      `${one.name}${one.required ? " *" : ""} (${one.in})`, typed(one.schema),
      one.description || one.schema.description,
    ])));
  }
  for (const [type, body] of Object.entries(described.requestBody?.content || {})) {
    parts.push(make("h4", `Body, ${type}`), make("p", described.requestBody.description));
    parts.push(fields(resolve(body.schema, all)), ...example(body));
  }
  const answers = Object.entries(described.responses).map(([status, one]) => [status, resolve(one, all)]);
  parts.push(make("h4", "Answers"), table(answers.map(([status, answer]) => [
    status, answer.description, typed(Object.values(answer.content || {})[0]?.schema),
  ])));
  for (const [status, answer] of answers) {
    if (status < 300) for (const content of Object.values(answer.content || {})) parts.push(...example(content));
  }
  return parts;
};
const call = (described, all) => {
  const sent = resolve(described.messages[0], all);
  const answers = (described.reply?.messages || []).map((one) => [nameOf(one), resolve(one, all)]);
  const params = resolve(sent.payload.properties.params, all);
  const parts = [make("p", described.description || sent.summary)];
  if (params) parts.push(make("h4", "Params"), fields(params));
  parts.push(shown(sent.examples[0].payload));
  const [, result] = answers[0] || [];
  if (result) {
    parts.push(make("h4", "Result"), make("p", "", ...typed(result.payload.properties.result).childNodes), shown(result.examples[0].payload));
    parts.push(make("h4", "Errors"), table(answers.slice(1).map(([, one]) => [one.title, one.summary])));
  }
  if (sent["x-of"]) parts.push(make("p", `Comes to those who follow: ${sent["x-of"].join(", ")}.`));
  return parts;
};
const schemas = (title, all) => [make("h3", title), ...Object.entries(all.components.schemas).map(([name, schema]) =>
  entry(`${title.replaceAll(" ", "-")}-${name}`, "schema", "", name, schema.description || "", "",
    () => schema.properties ? [fields(schema)] : [make("p", typeOf(schema))]))];
const section = (title, ...children) => {
  const heading = make("h2", title);
  heading.id = title.toLowerCase();
  return [heading, ...children];
};
const http = (all) => {
  const parts = section("HTTP", ...paragraphs(all.info.description));
  for (const { name } of all.tags) {
    parts.push(make("h3", name));
    for (const [path, methods] of Object.entries(all.paths)) {
      for (const [method, described] of Object.entries(methods)) {
        if (!described.tags.includes(name)) continue;
        parts.push(entry(described.operationId, method.toUpperCase(), method, all.servers[0].url + path,
          described.summary, described.operationId, () => request(path, described, all)));
      }
    }
  }
  return [...parts, ...schemas("HTTP schemas", all)];
};
const refusals = (channel) => [make("h4", "Refusals"), table(channel["x-refusals"].map((one) => [
  `${one.status} ${one.error}`, one.description, one.headers.join(", "),
]))];
const limits = (channel) => table(channel["x-limits"].map((one) => [one.name, one.value, one.description]));
const inputs = (kind, schema) => Object.entries(schema.properties).map(([name, one]) => [
  `${name} (${kind})`, typeOf(one), one.description,
]);
const socket = (all) => {
  const channel = all.channels.socket;
  const handshake = channel.bindings.ws;
  const parts = section("WebSocket", ...paragraphs(`${all.info.description}\n\n${channel.description}`),
    make("h3", "Handshake"), table([
      ...inputs("query", handshake.query), ...inputs("header", handshake.headers),
    ]), ...refusals(channel), make("h3", "Close codes"), table(channel["x-close-codes"].map((one) => [
      `${one.code} ${one.name}`, one.description, one.reconnect ? "connect again and recover" : "the client is at fault",
    ])), make("h3", "Limits"), limits(channel));
  const ours = Object.entries(all.operations).filter(([, described]) => nameOf(described.channel) === "socket");
  for (const { name } of all.info.tags) {
    const tagged = ours.filter(([, described]) => described.tags[0].name === name);
    if (tagged.length) parts.push(make("h3", name));
    for (const [id, described] of tagged) {
      const isSent = described.action === "send";
      parts.push(entry(`ws-${id}`, isSent ? "sent" : "call", isSent ? "sent" : "call",
        resolve(described.messages[0], all).title, described.summary, id, () => call(described, all)));
    }
  }
  return [...parts, ...schemas("WebSocket schemas", all)];
};
const event = (described, all) => {
  const data = described.payload.allOf?.[0] ?? described.payload;
  const { headers, payload } = described.examples[0];
  const lines = ["retry", "id", "event"].filter((name) => name in headers).map((name) => `${name}: ${headers[name]}`);
  return [make("h4", "Lines"), fields(described.headers), make("h4", "Data"), fields(resolve(data, all)),
    shown([...lines, `data: ${JSON.stringify(payload)}`].join("\n"))];
};
const stream = (all) => {
  const channel = all.channels.stream;
  const { summary, bindings } = all.operations.streamProgramEvents;
  const { request: asked, ...events } = channel.messages;
  const parts = section("Server-Sent Events", make("p", `${summary}: GET ${all.servers.stream.pathname}${channel.address}`),
    ...paragraphs(channel.description), make("h3", "Request"), table([
      ...inputs("query", bindings.http.query), ...inputs("header", asked.headers),
    ]), ...refusals(channel), make("h3", "Ends"), table(channel["x-close-codes"].map((one) => [
      one.code, one.reasons.join(", "), one.description, one.reconnect ? "ask again and recover" : "it is over",
    ])), make("h3", "Bounds"), limits(channel), make("h3", "Events"));
  for (const [name, described] of Object.entries(events)) {
    parts.push(entry(`sse-${name}`, "sent", "sent", name, described.summary, "event stream", () => event(described, all)));
  }
  return parts;
};
const listContents = (main) => {
  const contents = document.getElementById("contents");
  for (const heading of main.querySelectorAll("h2, h3")) {
    if (heading.tagName === "H2") {
      contents.append(make("h2", heading.textContent), make("ul"));
      continue;
    }
    heading.id = `${contents.querySelector("h2:last-of-type").textContent}-${heading.textContent}`.replaceAll(" ", "-");
    const link = make("a", heading.textContent.replace(/^(HTTP|WebSocket) s/, "S"));
    link.href = `#${heading.id}`;
    contents.lastElementChild.append(make("li", "", link));
  }
};
const find = (words) => {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const { node, text } of entries) {
    node.hidden = !wanted.every((word) => text.includes(word));
    count += !node.hidden;
  }
  for (const node of document.querySelectorAll("main > :not(details)")) node.hidden = wanted.length > 0 && node.tagName !== "H2";
  document.getElementById("found").textContent = wanted.length ? `${count} found` : "";
};
const openTarget = () => {
  const node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (node?.tagName === "DETAILS") node.open = true;
  if (node) node.hidden = false; // what is sought may hide it
  node?.scrollIntoView();
};
const load = async (name) => (await fetch(`api/v1/${name}`)).json();
Promise.all([load("openapi.json"), load("asyncapi.json")]).then(([openapi, asyncapi]) => {
  const main = document.getElementById("reference");
  main.replaceChildren(...http(openapi), ...socket(asyncapi), ...stream(asyncapi));
  listContents(main);
  const field = document.getElementById("find");
  field.addEventListener("input", () => find(field.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field) {
      event.preventDefault();
      field.focus();
    }
  });
  main.addEventListener("toggle", (event) => {
    if (event.target.open && event.target.id) history.replaceState(null, "", `#${event.target.id}`);
  }, true);
  window.addEventListener("hashchange", openTarget);
  openTarget();
}).catch((fault) => {
  document.getElementById("reference").textContent = `The reference cannot be loaded: ${fault.message}`;
});
