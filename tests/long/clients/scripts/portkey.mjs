// Portkey's gateway; the client's headers say which address it asks.
import { spawn } from "node:child_process";
import { createServer } from "node:net";

const probe = createServer();
await new Promise((ready) => probe.listen(0, "127.0.0.1", ready));
const { port } = probe.address();
await new Promise((closed) => probe.close(closed));
const script = `${process.env.CACHE}/node_modules/@portkey-ai/gateway/build/start-server.js`;
const server = spawn("node", [script, `--port=${port}`, "--headless"], { stdio: ["ignore", 2, 2] });
process.on("SIGTERM", () => { server.kill(); process.exit(0); });
for (;;) {
  try {
    await fetch(`http://127.0.0.1:${port}/`);
    break;
  } catch {
    await new Promise((later) => setTimeout(later, 200));
  }
}
console.log(`base_url http://127.0.0.1:${port}/v1`);
