// An agent in JavaScript without any library: it asks for a slogan, then for the same in capital letters.
//
//     OPENAI_BASE_URL=http://127.0.0.1:8400/v1 OPENAI_API_KEY=none MODEL=default/smollm2-135m \
//         node examples/agent_elsewhere.mjs "umbrellas"
//
// It knows nothing of art; agent_elsewhere.py starts it.

const { OPENAI_BASE_URL, OPENAI_API_KEY, MODEL } = process.env;
const messages = [];

async function ask(text) {
  messages.push({ role: "user", content: text });
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: MODEL, messages, max_tokens: 32 }),
  });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const { message } = (await response.json()).choices[0];
  messages.push(message);
  return message.content;
}

await ask(`Write a short slogan for a shop that sells ${process.argv[2]}.`);
console.log(await ask("The same in capital letters, please."));
