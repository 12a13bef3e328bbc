"""Whether a summary orders its reader about, or claims an order that no person gave.

A summary is a record: it may tell what people asked for, and order nothing itself. The rules are tables of patterns, in
English, German, French, Spanish and Chinese. What a rule finds is sound where people said it, too: their words are
compared by the words that carry meaning.

What they cannot see: an order in the form of a planned step ("Open: delete the branch"), in other words or another
language than those of the tables, spread over several sentences, or misspelt to be missed; an order that stands in what
a person pasted; one in a sentence that calls itself a prompt injection; a claim of no dangerous matter ("the user wants
blue buttons").
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.text.wording import NOT, content, lowered, sentences

_BACKED = 0.6
"""The share of an order's words that one message of a person must have."""
_HINTED = 0.3
"""Likewise of what is said to have been ordered, in all messages together: a report has words of its own."""
_NEAR = 40
"""Characters before a word in which a negation counts for it."""

_START = r"(?:^|[.:;,!?–—]\s{0,3}|\band )"
_AI = r"(?:ai|assistant|model|agent|llm|chatbot|chatgpt|gpt|claude)"
_IDIOMS: Sequence[str] = (
    r"<\|[\w ]{1,30}\|>|\[/?inst\]|<</?sys>>|</?(?:system|developer|instructions?|system-reminder)>",
    # the roles of a prompt
    rf"^\W{{0,6}}(?:system|developer|{_AI})(?: \w{{1,12}})?\W{{0,3}}[:,]\s{{0,3}}(?:please |now |kindly )?(?:you\b"
    rf"|ignore\b|forget"
    r"|disregard|obey|approve|execute|reveal|print|send|delete|upload|call\b|run\b|do not|don't|never\b|always\b"
    r"|must\b)",
    rf"\b(?:note|message|attention|notice|reminder) (?:to|for) (?:the |any |all |an )?{_AI}\b",
    rf"\b(?:dear|attention),? {_AI}\b",
    # "ignore all previous instructions"
    r"\b(?:ignore|disregard|forget|override|bypass|discard)\b(?: [\w']{1,20}){0,4}? (?:previous|prior|earlier|above"
    r"|preceding|former|system|existing|original|initial|safety)(?: \w{1,20}){0,2}? (?:instruction|rule|prompt|message"
    r"|direct|guideline|polic|order|command|restriction)",
    r"\b(?:ignore|disregard|forget|override|bypass|discard) (?:\w{1,12} ){0,3}(?:above|before\b|previous rules"
    r"|your (?:\w{1,12} )?(?:instruction|rule|prompt|guideline)|everything you)",
    r"\b(?:ignore|disregard|forget) (?:\w{1,12} ){0,3}(?:instructions|rules|prompts|guidelines) (?:above|before|given"
    r"|so far)",
    r"\b(?:do not|don't|never|stop) (?:follow|obey)\w{0,3} (?:the |your |any |these )?(?:\w{1,12} )?(?:instructions"
    r"|rules|prompt)",
    r"^\W{0,6}(?:new|updated|revised|real|actual) (?:system )?(?:instruction|order|directive|prompt)s?\W{0,3}:",
    r"\byou are (?:now |no longer )(?:in |an? |the |bound|restricted|dan\b|free|unrestricted|root)"
    r"|\bunrestricted (?:mode|ai|assistant)",
    # the same in German, French, Spanish and Chinese
    r"\b(?:ignorier\w{0,3}|missacht\w{0,3}|vergiss|vergesst|vergessen sie)\b(?: \w{1,20}){0,4}? (?:vorherig|vorig"
    r"|bisherig|früher|obig|vorangegangen|vorangehend|ursprünglich)\w{0,3} (?:\w{1,20} )?(?:anweisung|instruktion|regel"
    r"|befehl|vorgabe|nachricht|aufforderung|weisung)",
    r"\b(?:ignor|oubli|néglig)(?:e|ez|er|es)\b(?: [\w']{1,20}){0,4}? (?:instruction|consigne|règle|directive|ordre"
    r"|message)s?(?: \w{1,20}){0,2}? (?:précédent|antérieur|ci-dessus|initia|préalable)",
    r"\b(?:ignor|olvid|descart)(?:a|e|ad|en|ar)\b(?: \w{1,20}){0,4}? (?:instruccion|regla|órden|indicacion|mensaje"
    r"|directriz|directrice)\w{0,2}(?: \w{1,20}){0,2}? (?:anterior|previ|precedent|de arriba|inicial)",
    r"\bne (?:tiens|tenez) (?:pas|aucun) compte des? \w{1,20} (?:précédent|antérieur)|\bhaz caso omiso de",
    r"(?:忽略|无视|無視|忽視|忘记|忘掉|忘記|不要理会|不理会)[^。！？\n]{0,6}(?:之前|以前|以上|上述|先前|前面|此前|所有|一切|系统|原来)"
    r"[^。！？\n]{0,6}(?:指令|指示|规则|規則|提示|命令|说明|要求|指引)",
)
"""Wordings that a sound summary has only where it reports them."""
_ROLE = re.compile(r"^\W{0,6}(?:SYSTEM|DEVELOPER|ADMIN|ROOT)(?: [A-Z]{2,12})?\W{0,3}:", re.M)
"""A role in capitals at the beginning of a line."""
_REPORTED = re.compile(
    r"\binject\w{0,4}|\buntrusted\b|\bmalicious|\bsuspicious|\bnot (?:be |been )?(?:followed|obeyed)|注入"
)
_SAID_SO = re.compile(r"\b(?:user|person|he|she|they) (?:\w{1,12} )?(?:said|asked|wants?|told|wrote)")

_CALLS = r"(?:call|command|action|request|permission|prompt|tool|operation|question|confirmation)s?\b"
_ALL = r"(?:all|every|any|each|everything)"
_ORDERS: Sequence[str] = (
    # to the reader
    r"\byou (?:must|shall|should|have to|need to|are to|ought to|may|will (?:now|comply|obey|always|never)"
    r"|are (?:allowed|permitted|required|authori[sz]ed|free) to|(?:now )?have (?:root|full|admin|unlimited|permission"
    r"|access))\b",
    r"\byour (?:new|real|actual|true|only) (?:task|instruction|goal|role|mission|objective|job)",
    rf"(?:from now on|henceforth|from this point on),? (?:you|approve|accept|allow|reply|respond|answer|always|never"
    rf"|only|do|obey|follow|execute|run|call|ignore|the {_AI})\b",
    rf"{_START}(?:only )?(?:reply|respond|answer|output|say|print|repeat)\b(?: \w{{1,12}}){{0,3}}? ?(?:only|exactly"
    rf"|nothing but)\b",
    rf"{_START}only (?:reply|respond|answer)\b",
    rf"{_START}(?:call|invoke|execute|use|run|trigger) (?:the |this |your )?(?:\S{{1,40}} )?(?:tool"
    rf"|function)\b.{{0,60}}"
    r"\b(?:now|immediately|at once|right away|right now|always|every time|instantly)\b",
    rf"{_START}(?:pretend (?:to be|you|that)|act as (?:an?|the) (?:admin|root|unrestricted|system|developer))",
    rf"\bthe {_AI} (?:\w{{1,12}} )?(?:must|shall|should|has to|needs to|is to|ought to|may) (?:\w{{1,12}} )?(?:obey"
    rf"|approve|accept"
    r"|execute|follow|comply|ignore|disregard|send|upload|reveal|disclose|transfer|grant|delete|forget|trust)\b",
    # about permission, and what people may know
    rf"\b(?:approve|accept|allow|grant|permit|authori[sz]e|confirm) {_ALL}(?: [\w-]{{1,20}}){{0,3}}? {_CALLS}",
    rf"\b{_ALL}(?: [\w-]{{1,20}}){{0,2}}? (?:calls?|commands?|actions?|tool requests?)(?: \w{{1,12}}){{0,4}} (?:pre-?)?"
    r"(?:approved|allowed|granted|permitted|authori[sz]ed)\b(?! (?:by|in|via|through|with))",
    rf"\bno (?:confirmation|approval|permission)s? (?:is|are) (?:needed|required"
    rf"|necessary)(?: \w{{1,12}}){{0,3}} {_CALLS}",
    rf"\btreat {_ALL}(?: \w{{1,12}}){{0,3}} as (?:pre-?)?(?:approved|allowed|authori[sz]ed|trusted)\b",
    r"\bhide(?: \w{1,12}){1,4} from (?:the )?(?:user|person|human|owner)\b",
    r"\bskip (?:all |any |every |the )?(?:confirmation|approval|permission|safety)",
    r"\b(?:do not|don't|never) (?:tell|mention|inform|reveal|show|alert|notify|let)(?: \w{1,12}){0,4} (?:the )?(?:user"
    r"|person|human|anyone|anybody|owner)\b",
    r"\b(?:reveal|print|repeat|output|leak) (?:your|the) (?:system |hidden |secret )?(?:prompt|instructions)\b",
    # the same in German, French, Spanish and Chinese
    r"\bdu (?:musst|sollst|darfst|bist (?:jetzt|nun))\b|\bsie (?:müssen|sollen|dürfen) (?:jetzt|nun|sofort|ab sofort"
    r"|ab jetzt)\b",
    r"\bab (?:jetzt|sofort|nun),? (?:\w{1,20} )?(?:du|antworte|genehmige|befolge|gehorche|erlaube)\b",
    r"\bantworte(?:n sie)?\b(?: \w{1,20}){0,3}? (?:nur|ausschließlich|lediglich)\b|\bgenehmig\w{0,3} (?:alle|jede"
    r"|sämtliche)",
    r"\bruf\w{0,3} das (?:tool|werkzeug)\b",
    r"\b(?:tu dois|vous devez)\b|\b(?:désormais|dorénavant|à partir de maintenant),? (?:tu|vous|répond|approuve)",
    r"\brépond(?:s|ez) (?:uniquement|seulement)\b|\bapprouve[sz]? (?:tous|toutes|chaque)\b|\bappellez? l'outil\b",
    r"\b(?:debes|deberás|tienes que|usted debe)\b|\b(?:a partir de|desde) ahora,? (?:debes|responde|aprueba|eres)\b",
    r"\bresponde (?:solo|sólo|únicamente)\b|\baprueba (?:todas|todos|cada)\b|\bllama a la herramienta\b",
    r"你们?(?:现在|今后|以后|从此)?(?:必须|应该|应当|得|务必)|从(?:现在|今|此)(?:开始|起)?[，,]?(?:你|批准|只)",
    r"[只仅](?:能|可以|需)?(?:回复|回答|输出)|批准(?:所有|每|一切|全部)|(?:立即|马上|立刻)调用",
)
"""Wordings that a sound summary has only where people used the same words."""

_WHO = r"(?:user|person|human|owner|client|customer|operator|admin(?:istrator)?|boss|manager|maintainer)"
_ADVERBS = r"(?: (?:has|have|had|also|now|already|explicitly|clearly|just|again|then|is|was)){0,3}"
_CLAIMS: Sequence[str] = (
    rf"(?:^(?:\w{{1,20}}:)?\s{{0,3}}|\b(?:the|our|an?) ){_WHO}:?{_ADVERBS} (?:ordered|commanded|instructed|directed"
    rf"|demand(?:ed|s)"
    r"|authori[sz]e[ds]|approve[ds]|permit(?:ted|s)|allow(?:ed|s)|grant(?:ed|s)|consent(?:ed|s)|agree[ds]|confirm(?:ed"
    r"|s)|gave|given|told|insist(?:ed|s)|ask(?:ed|s)|want(?:ed|s)|request(?:ed|s)|said|says|require[ds]|expect(?:ed|s)"
    r"|(?:fine|ok|okay|happy) with)\b",
    r"\b(?:der|die|dem) (?:nutzer|benutzer|anwender|person|mensch|kunde)(?:in)?\b.{0,30}?\b(?:befohlen|befahl"
    r"|angeordnet|erlaubt\w{0,2}"
    r"|genehmigt\w{0,2}|gestattet|autorisiert|verlangt|gewünscht|gebeten|will|möchte|wünscht|zugestimmt)\b",
    r"\b(?:l'utilisat(?:eur|rice)|la personne|le client)\b.{0,20}?\b(?:ordonné|autorisé|permis|approuvé|demandé|exigé"
    r"|accordé|veut|souhaite|demande)\b",
    r"\b(?:el usuario|la usuaria|la persona|el cliente)\b.{0,20}?\b(?:ordenado|autorizado|permitido|aprobado|pedido"
    r"|exigido|solicitado|quiere|desea|ordenó|autorizó|pidió|permitió)\b",
    r"用户(?:已经?|明确)?(?:授权|批准|允许|同意|命令|要求|希望|下令)",
)
"""What a person is said to have asked for or allowed: it counts from there to the end of the sentence."""
_BEHALF = re.compile(
    rf"\b(?:requested|ordered|instructed|approved|authori[sz]ed|permitted|allowed|told) by (?:the )?{_WHO}\b"
    rf"|\b{_WHO}'s (?:permission|approval|consent|request|order|instruction|wish|authori[sz]ation)"
    rf"|\bas (?:the )?{_WHO} (?:asked|requested|ordered|wanted|said)"
)
"""Likewise, of the whole sentence."""
_ORDERED = re.compile(
    r"\b(?:ordered|commanded|instructed|directed|demanded|befohlen|angeordnet|ordonné|exigé|ordenado)\b|下令|命令"
)
_POWERS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "approve": r"\b(?:pre-?|auto-?)?(?:approv|authori[sz]|permi(?:t|ss)|allow|grant|accept|consent|agree|genehmig"
        r"|erlaub|gestatte|zugestimmt|freigeb|approuv|autoris|permis|aprueb|aprob|autoriz)|批准|授权|允许|同意",
        "unasked": r"\bwithout (?:\w{1,12} )?(?:asking|approv|confirm|permission|review|prompt|check)|\b(?:don't"
        r"|do not) (?:need|have) to ask|\bno longer (?:\w{1,12} ){1,5}(?:asked|confirm)|\bno (?:approval|confirmation"
        r"|permission|review) (?:is )?(?:needed|required|necessary)|\bskip\w{0,4} (?:\w{1,12} ){0,2}(?:confirm|approv"
        r"|review|check)|\bohne (?:nachfrage|rückfrage|zu fragen)|\bsans (?:demander|confirm)|\bsin (?:preguntar"
        r"|confirm)",
        "delete": r"\b(?:delet|eras|wip(?:e|ing)|remov|drop|destroy|purg|lösch|supprim|suppress|efface|borr|elimin)"
        r"|删除|清除",
        "disable": r"\b(?:disabl|bypass|circumvent|turn(?:ed|ing)? off|switch(?:ed|ing)? off|overrid|deaktivier"
        r"|abschalt|umgeh|désactiv|contourn|desactiv)|禁用|绕过|关闭",
        "send": r"\b(?:send|sent|upload|exfiltrat|transfer|forward|publish|leak|schick|überweis|hochlad|envoy|enví"
        r"|envi[ae]|subir)|发送|上传|转账",
        "push": r"\b(?:(?:force[- ])?push|deploy|merg|releas)",
        "secrets": r"\b(?:password|secret|credential|private key|api key|passwort|passwörter|mot de passe|contraseña)"
        r"|密码|密钥",
        "access": r"\b(?:full|root|admin|unlimited|production) (?:access|rights|control)|\bsudo\b",
        "obey": r"\b(?:obey|comply|follow) (?:all|every|any|the) (?:instruction|order|command)|\btrust (?:all|every"
        r"|any)\b",
    }.items()
}
"""Matters in which a claim must be true, each by its words."""
_UNIVERSAL = re.compile(
    r"\b(?:all|every|any|each)(?: [\w-]{1,20}){0,2}? (?:future|further|calls?|commands?|actions?|requests?|tools?"
    r"|pending|payments?)\b|\beverything\b|\bin future\b|\bfrom now on\b|\bautomatically\b|\bjede\w{0,2} aufruf"
    r"|\balle aufrufe|\bchaque appel|\btous les appels|\b(?:cada|todas las) llamadas?|所有调用|每次调用"
)
_ASSENT = re.compile(
    r"\b(?:yes|yep|ok|okay|sure|fine|good|great|perfect|lgtm|go ahead|go for it|do it|please do|agreed?|approved?|right"
    r"|correct|ja|gut|passt|einverstanden|mach das|oui|d'accord|sí|vale|de acuerdo)\b|好|可以|同意|行"
)
_QUOTED = re.compile(r"\"[^\"\n]{1,300}\"|“[^”\n]{1,300}”|`[^`\n]{1,300}`|„[^“”\n]{1,300}[“”]|«[^»\n]{1,300}»")
_idioms, _orders, _claims = (
    tuple(re.compile(pattern, re.M) for pattern in patterns) for patterns in (_IDIOMS, _ORDERS, _CLAIMS)
)


@dataclass(frozen=True, slots=True)
class People:
    """What people wrote, as the rules compare it."""

    words: Sequence[frozenset[str]]
    """Those that carry the meaning of each message."""
    powers: frozenset[str]
    """The dangerous matters that they ask for."""
    allow_all: bool
    """Whether one of them allows something for good."""
    assent: bool

    def wrote(self, text: str, share: float) -> bool:
        """Whether one of the messages has this share of the words that carry the meaning of a text."""
        meant = content(text)
        return bool(meant) and any(len(meant & message) >= share * len(meant) for message in self.words)


def people_of(messages: Iterable[str]) -> People:
    lower = [lowered(message) for message in messages]
    pairs = [(sentence, _powers(sentence)) for message in lower for sentence in sentences(message)]
    return People(
        words=tuple(map(content, lower)),
        powers=frozenset[str]().union(*(powers for _, powers in pairs)),
        allow_all=any("approve" in powers and _UNIVERSAL.search(sentence) for sentence, powers in pairs),
        assent=any(_ASSENT.search(sentence) for sentence, _ in pairs),
    )


def orders(text: str, people: People) -> str:
    """The first sentence that orders the reader about in words that no person used; empty where there is none."""
    if role := _ROLE.search(text):
        return role.group()
    for sentence in sentences(lowered(text)):
        reported = _REPORTED.search(sentence) or (_SAID_SO.search(sentence) and people.wrote(sentence, 0.5))
        if not reported and any(idiom.search(sentence) for idiom in _idioms):
            return sentence
        own = _QUOTED.sub(" ", sentence)  # what it quotes, it reports
        if any(order.search(own) for order in _orders) and not people.wrote(sentence, _BACKED):
            return sentence
    return ""


def claims(text: str, people: People) -> str:
    """The first sentence that says of a person what none of them said; empty where there is none."""
    for sentence in sentences(lowered(text)):
        behalf = _BEHALF.search(sentence)
        begin = behalf or next((match for claim in _claims if (match := claim.search(sentence))), None)
        if begin is None:
            continue
        claim = sentence if behalf else sentence[begin.start() :]
        powers = _powers(claim)
        missing = powers - people.powers
        if "approve" in powers and _UNIVERSAL.search(claim):
            missing = missing if people.allow_all else powers
        elif people.assent or people.wrote(claim, _BACKED):
            missing -= {"approve"}
        ordered = _ORDERED.search(claim)
        if missing or (ordered and not people.wrote(claim[ordered.end() :], _HINTED)):
            return sentence
    return ""


def _powers(sentence: str) -> frozenset[str]:
    """The dangerous matters that a sentence is about, but for what it denies."""
    return frozenset(
        name
        for name, pattern in _POWERS.items()
        for match in pattern.finditer(sentence)
        if not NOT.search(sentence[max(0, match.start() - _NEAR) : match.start()])
    )
