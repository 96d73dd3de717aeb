// Calls the server at argv[2] through the Vercel AI SDK and prints, as one JSON object, what the SDK made of it.
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const settings = { baseURL: process.argv[2], apiKey: "sk-very-secret" };
// The plain `openai("m")` speaks OpenAI's Responses API; `.chat` speaks chat completions.
const openai = createOpenAI(settings);
const providers = {
  openai: openai.chat("m"),
  compatible: createOpenAICompatible({ name: "art", ...settings, supportsStructuredOutputs: true })("m"),
};
const tools = {
  f: tool({ inputSchema: jsonSchema({ type: "object" }), execute: async (input) => `result ${input.a}` }),
};
const place = jsonSchema({
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
});
const told = {};
for (const [name, model] of Object.entries(providers)) {
  const common = { model, prompt: "u", maxRetries: 0 };
  const plain = await generateText({ ...common, seed: 1, temperature: 0.5, stopSequences: ["STOP"] });
  const streamed = streamText(common);
  let text = "";
  for await (const part of streamed.textStream) text += part;
  const called = await generateText({ ...common, tools, toolChoice: "auto", stopWhen: stepCountIs(2) });
  const required = await generateText({ ...common, tools, toolChoice: "required" });
  const structured = await generateText({ ...common, output: Output.object({ schema: place }) });
  let code = null;
  try {
    await generateText({ ...common, model, presencePenalty: 0.5 });
  } catch (error) {
    code = JSON.parse(error.responseBody).error.code;
  }
  told[name] = {
    text: plain.text,
    usage: plain.usage.outputTokens,
    id: plain.response.id,
    streamed: text,
    streamedId: (await streamed.response).id,
    finish: await streamed.finishReason,
    calls: called.steps[0].toolCalls.map((call) => [call.toolName, call.input]),
    callId: called.steps[0].toolCalls[0].toolCallId,
    after: called.text,
    required: required.toolCalls.length,
    structured: structured.output,
    code,
  };
}
const completed = await generateText({ model: openai.completion("m"), prompt: "u", maxRetries: 0 });
told.completion = completed.text;
console.log(JSON.stringify(told));
