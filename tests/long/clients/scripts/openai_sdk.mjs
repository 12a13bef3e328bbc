// The official SDK of OpenAI for TypeScript: chat completions and Responses.
import { execSync } from "node:child_process";
import OpenAI from "openai";

const { AGENT_KEY, BASE_URL, MODEL, API, STREAM } = process.env;
const client = new OpenAI({ baseURL: BASE_URL, apiKey: AGENT_KEY, maxRetries: 0 });
const parameters = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const bash = { name: "bash", description: "Run a command in the shell.", parameters };

function called(name, text) {
  if (name !== "bash") throw new Error(`unknown tool ${name}`);
  return execSync(JSON.parse(text).command, { encoding: "utf8" });
}

async function chat(history) {
  const request = { model: MODEL, messages: history, tools: [{ type: "function", function: bash }] };
  const completion = STREAM
    ? await client.chat.completions.stream(request).finalChatCompletion()
    : await client.chat.completions.create(request);
  const { role, content, tool_calls } = completion.choices[0].message;
  const calls = (tool_calls ?? []).map(({ id, type, function: { name, arguments: text } }) => ({
    id, type, function: { name, arguments: text },
  }));
  history.push(calls.length ? { role, content, tool_calls: calls } : { role, content });
  for (const { id, function: f } of calls) {
    history.push({ role: "tool", tool_call_id: id, content: called(f.name, f.arguments) });
  }
  return calls.length ? null : content;
}

async function responses(history) {
  const request = {
    model: MODEL, input: history, store: false, include: ["reasoning.encrypted_content"],
    tools: [{ type: "function", ...bash, strict: false }],
  };
  const response = STREAM
    ? await client.responses.stream(request).finalResponse()
    : await client.responses.create(request);
  const calls = response.output.filter((item) => item.type === "function_call");
  for (const { parsed_arguments, ...item } of response.output) {
    item.content?.forEach((each) => delete each.parsed); // what the SDK adds, and the API does not take
    history.push(item);
  }
  for (const { call_id, name, arguments: text } of calls) {
    history.push({ type: "function_call_output", call_id, output: called(name, text) });
  }
  return calls.length ? null : response.output_text;
}

const ask = { openai_chat: chat, openai_responses: responses }[API];
const history = [{ role: "system", content: "You are careful." }];
for (const task of process.argv.slice(2)) {
  history.push({ role: "user", content: task });
  let text = null;
  while (text === null) text = await ask(history);
  console.log(text);
}
