// The official SDK of Anthropic for TypeScript, with thinking.
import { execSync } from "node:child_process";
import Anthropic from "@anthropic-ai/sdk";

const { AGENT_KEY, BASE_URL, MODEL, STREAM } = process.env;
const client = new Anthropic({ baseURL: BASE_URL.replace(/\/v1$/, ""), apiKey: AGENT_KEY, maxRetries: 0 });
const schema = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const tools = [{ name: "bash", description: "Run a command in the shell.", input_schema: schema }];
const messages = [];
for (const task of process.argv.slice(2)) {
  messages.push({ role: "user", content: task });
  for (;;) {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const request = { model: MODEL, max_tokens: 4096, messages, tools, thinking };
    const message = STREAM
      ? await client.messages.stream(request).finalMessage()
      : await client.messages.create(request);
    messages.push({ role: "assistant", content: message.content });
    const calls = message.content.filter((block) => block.type === "tool_use");
    if (!calls.length) {
      console.log(message.content.filter((block) => block.type === "text").map((block) => block.text).join(""));
      break;
    }
    const results = calls.map(({ id, name, input }) => {
      if (name !== "bash") throw new Error(`unknown tool ${name}`);
      return { type: "tool_result", tool_use_id: id, content: execSync(input.command, { encoding: "utf8" }) };
    });
    messages.push({ role: "user", content: results });
  }
}
