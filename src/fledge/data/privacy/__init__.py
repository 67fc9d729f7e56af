"""Finds personal data and secrets in prompts and answers, and drops, redacts or replaces them.

Reading order: filter, then clues and recognizers, then one rule of each kind.

options       the recipe's options                   entities      the kinds of personal data, and findings
filter        scan, treat, scan again                audit         counts that are safe to share
clues         one cheap look at a text               recognizers   the rules, and the recipe's own
ner, cloud    models and services besides the rules  countries     Presidio's recognisers of single countries
forms         numbers recognised by their form       labels        numbers by the words before them (label_words)
births        dates of birth                         contact       e-mail, telephones, links with keys
secrets       keys                                   passwords     passwords and PINs
handles       user names, profiles, coordinates      cjk           numbers after Chinese, Japanese, Korean words
fields        values by the name of their field or of their column
names         people (runs; the words around them: cues)
places        towns                                  addresses     streets
organizations firms, if requested, and those named after people
lexicon       names, places, everyday words          word_lists    reads `words/`
surrogates    invented values: fiction makes names, reserved knows them and what standards set aside
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.data.privacy.audit import Audit as Audit
    from fledge.data.privacy.audit import read_audit as read_audit
    from fledge.data.privacy.audit import write_audit as write_audit
    from fledge.data.privacy.entities import Finding as Finding
    from fledge.data.privacy.filter import PrivacyFilter as PrivacyFilter
    from fledge.data.privacy.filter import Treated as Treated
    from fledge.data.privacy.filter import require_privacy_extra as require_privacy_extra
    from fledge.data.privacy.options import CloudDlp as CloudDlp
    from fledge.data.privacy.options import NerModel as NerModel
    from fledge.data.privacy.options import PrivacyOptions as PrivacyOptions
else:
    __getattr__ = on_first_use(__name__)
