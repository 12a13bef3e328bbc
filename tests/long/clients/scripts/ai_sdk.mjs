// The AI SDK: its own loop over steps, through @ai-sdk/openai-compatible.
import { execSync } from "node:child_process";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { AGENT_KEY, BASE_URL, MODEL, STREAM } = process.env;
const provider = createOpenAICompatible({ name: "narrows", baseURL: BASE_URL, apiKey: AGENT_KEY });
const bash = tool({
  description: "Run a command in the shell.",
  inputSchema: z.object({ command: z.string() }),
  execute: async ({ command }) => execSync(command, { encoding: "utf8" }),
});
const messages = [];
for (const task of process.argv.slice(2)) {
  messages.push({ role: "user", content: task });
  const request = { model: provider(MODEL), messages, tools: { bash }, stopWhen: stepCountIs(60), maxRetries: 0 };
  const result = STREAM ? streamText(request) : await generateText(request);
  if (STREAM) await result.consumeStream();
  messages.push(...(await result.response).messages);
  console.log(await result.text);
}
